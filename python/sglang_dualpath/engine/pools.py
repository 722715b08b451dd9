"""Seeing upstream's KV pools as paged layers of plain bytes."""

from typing import Any

from sglang_dualpath.blocks.paged import PagedLayers, PagedMha, PagedMla
from sglang_dualpath.config import FlagError

# Subclasses keep rows of other shapes (packed FP4, MXFP8 with scales), so the very class counts, not isinstance.
_MHA_POOLS = ("MHATokenToKVPool",)
_MLA_POOLS = ("MLATokenToKVPool",)


def paged_layers(pool: Any) -> tuple[PagedLayers, str]:
    """The pool's layers and its kind, `mha` or `mla`.

    Raises FlagError for a pool whose rows a Full Block cannot hold (upstream `mem_cache/memory_pool.py`).
    """
    name = type(pool).__name__
    if name in _MHA_POOLS:
        return PagedMha(list(pool.k_buffer), list(pool.v_buffer)), "mha"
    if name in _MLA_POOLS:
        return PagedMla(list(pool.kv_buffer)), "mla"
    raise FlagError(
        f"--kv-path does not know how to keep the KV of this model in blocks (its pool is {name}); "
        "dense and MoE models with MHA, GQA or MLA attention work"
    )

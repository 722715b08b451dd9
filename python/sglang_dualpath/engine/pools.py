"""Seeing upstream's KV pools as paged layers of plain bytes."""

from typing import Any

from sglang_dualpath.blocks.paged import PagedLayers, PagedMha, PagedMla
from sglang_dualpath.config import FlagError

_MHA_POOL = "MHATokenToKVPool"
_MLA_POOL = "MLATokenToKVPool"


def paged_layers(pool: Any) -> tuple[PagedLayers, str]:
    """The pool's layers and its kind, `mha` or `mla`.

    Raises FlagError for a pool whose rows a Full Block cannot hold (upstream `mem_cache/memory_pool.py`).
    """
    kind = _row_keeping_class(type(pool))
    if kind == _MHA_POOL:
        return PagedMha(list(pool.k_buffer), list(pool.v_buffer)), "mha"
    if kind == _MLA_POOL:
        return PagedMla(list(pool.kv_buffer)), "mla"
    raise FlagError(
        f"--kv-path does not know how to keep the KV of this model in blocks (its pool is {type(pool).__name__}); "
        "dense and MoE models with MHA, GQA or MLA attention work"
    )


def _row_keeping_class(pool_class: type) -> str:
    """The upstream class whose rows a pool keeps: its own, past subclasses of ours, which change only how memory is taken.

    Upstream's subclasses do not count: they keep rows of other shapes (packed FP4, MXFP8 with its scales).
    """
    while pool_class.__module__.startswith("sglang_dualpath."):
        pool_class = pool_class.__bases__[0]
    return pool_class.__name__

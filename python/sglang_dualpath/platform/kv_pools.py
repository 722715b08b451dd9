"""Upstream's KV pools, taking memory only for the tokens that have been in them."""

import ctypes
import mmap
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch


@cache
def kv_pool_class(kind: str) -> type | None:
    """For `SRTPlatform.get_kv_pool_cls`: upstream's pool for "mha" or "mla" with its zeros given back; else None."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    pools: dict[str, tuple[type, tuple[str, ...]]] = {
        "mha": (MHATokenToKVPool, ("k_buffer", "v_buffer")),
        "mla": (MLATokenToKVPool, ("kv_buffer",)),
    }
    if kind not in pools:
        return None
    pool, names = pools[kind]

    def create_buffers(self: Any) -> None:
        pool._create_buffers(self)  # type: ignore[attr-defined]
        give_back(buffer for name in names for buffer in getattr(self, name))

    # Under upstream's name: nothing about the pool's content differs, and some tell pools apart by their name.
    return type(pool.__name__, (pool,), {"_create_buffers": create_buffers})


def give_back(zeros: Iterable[torch.Tensor]) -> None:
    """Return the memory of tensors that are all zeros to the machine; they read as zeros still, and can be written."""
    library = ctypes.CDLL(None, use_errno=True)
    for tensor in zeros:
        # Whole pages only: what lies before and after them may be another's.
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        n_bytes = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if n_bytes > 0 and library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(n_bytes), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), f"madvise over {n_bytes} bytes of a KV pool failed")

"""Upstream's KV transfer backends between CPUs: what they assume of a GPU, taken back."""

from functools import cache
from typing import Any


def transfer_class(result: Any, transfer_backend: Any, class_type: Any) -> Any:
    """After `get_kv_class`: a Mooncake sender that takes plain page indices, a NIXL manager that knows its buffers as DRAM.

    The former would have its page indices in pinned memory behind a CUDA event.
    """
    if getattr(result, "supports_host_tensor_indices", False):
        result.supports_host_tensor_indices = False
    if class_type.name == "MANAGER" and transfer_backend.name == "NIXL":
        return _dram_manager(result)
    return result


@cache
def _dram_manager(manager: type) -> type:
    def init(self: Any, args: Any, *more: Any, **named: Any) -> None:
        # Upstream's decode side names the kinds itself, and takes every pool that is not a host pool for VRAM.
        args.kv_data_mem_kinds = ["DRAM"] * len(args.kv_data_ptrs)
        manager.__init__(self, args, *more, **named)  # type: ignore[misc]

    return type(f"Dram{manager.__name__}", (manager,), {"__init__": init})

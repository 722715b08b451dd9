"""Where upstream's allocation of KV slots would take a Triton kernel by the attention backend's name."""

from typing import Any


def last_slots(req_to_token: Any, req_pool_indices_tensor: Any, prefix_lens_tensor: Any) -> Any:
    """For `get_last_loc`: upstream's own torch form. Slots [batch] of the last prefix tokens, -1 without a prefix."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)

"""How much of the machine's memory HiCache may take."""

RESERVE_BYTES = 1 << 30
"""Left to the machine. Upstream leaves 10 GiB, which suits GPU hosts and is more than a laptop has."""


def host_memory_budget(result: int, requested_bytes: int = 0, *, auto_size: bool = False) -> int:
    """After `host_memory_budget_bytes`: the same with RESERVE_BYTES in place of upstream's reserve. Bytes, of this rank."""
    from sglang.srt.mem_cache.pool_host import base

    if base._host_memory_budget.get() is not None:
        return result  # a share of a budget that has been through here already
    return result + (base.HICACHE_HOST_MEMORY_RESERVE_BYTES - RESERVE_BYTES) // base.ranks_per_host()

"""How much memory HiCache may take."""

import pytest
from sglang.srt.mem_cache.pool_host import base
from sglang_dualpath.platform.hicache.memory import RESERVE_BYTES, host_memory_budget


def test_a_small_reserve_stands_in_for_upstreams() -> None:
    free_bytes = 20 << 30
    upstream = free_bytes - base.HICACHE_HOST_MEMORY_RESERVE_BYTES
    assert host_memory_budget(upstream) == free_bytes - RESERVE_BYTES


def test_ranks_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "ranks_per_host", lambda: 2)
    upstream = ((20 << 30) - base.HICACHE_HOST_MEMORY_RESERVE_BYTES) // 2
    assert host_memory_budget(upstream) == ((20 << 30) - RESERVE_BYTES) // 2


def test_a_share_of_a_fixed_budget_stays() -> None:
    with base.host_memory_budget_scope(5 << 30):
        assert host_memory_budget(5 << 30, 1 << 20) == 5 << 30

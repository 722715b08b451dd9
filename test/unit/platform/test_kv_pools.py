"""KV pools that take memory as they fill."""

import os
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang_dualpath.platform.kv_pools import give_back, kv_pool_class

TENSOR_BYTES = 64 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as statistics:
        return int(statistics.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_zeros_that_are_given_back_take_no_memory_and_are_zeros_still() -> None:
    tensor = torch.zeros(TENSOR_BYTES, dtype=torch.uint8)
    full = resident_bytes()
    give_back([tensor])
    assert resident_bytes() < full - TENSOR_BYTES // 2
    assert int(tensor.count_nonzero()) == 0


def test_they_keep_what_is_written_afterwards() -> None:
    tensor = torch.zeros(1 << 20)
    give_back([tensor])
    tensor[777] = 5.0
    assert tensor[777] == 5.0
    assert int(tensor.count_nonzero()) == 1


def test_neighbours_are_not_touched() -> None:
    whole = torch.full((1 << 20,), 7, dtype=torch.uint8)
    inner = whole[1000:-1000]
    inner.zero_()
    give_back([inner])
    assert int(whole.sum()) == 2000 * 7


def test_a_tensor_smaller_than_a_page_is_left_alone() -> None:
    tensor = torch.full((16,), 3, dtype=torch.uint8)
    give_back([tensor[1:15]])
    assert tensor.tolist() == [3] * 16


OPTIONS: dict[str, dict[str, Any]] = {
    "mha": {"head_num": 4, "head_dim": 64},
    "mla": {"kv_lora_rank": 192, "qk_rope_head_dim": 64},
}


@pytest.mark.parametrize(("kind", "upstream"), [("mha", MHATokenToKVPool), ("mla", MLATokenToKVPool)])
def test_a_pool_is_upstreams_but_for_its_memory(kind: str, upstream: type) -> None:
    pool_class = kv_pool_class(kind)
    assert pool_class is not None
    assert issubclass(pool_class, upstream)
    before = resident_bytes()
    pool = pool_class(
        size=65536,
        page_size=64,
        dtype=torch.float32,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
        **OPTIONS[kind],
    )
    assert pool.get_key_buffer(1).shape[0] == 65536 + 64
    assert int(pool.get_key_buffer(1).count_nonzero()) == 0
    # Read through, zero pages cost nothing; two layers are 128 MiB and more.
    assert resident_bytes() - before < TENSOR_BYTES


def test_other_pools_are_upstreams() -> None:
    assert kv_pool_class("dsa") is None

"""Upstream's host pools with our copies: what is backed up comes back, in every layout and for both head kinds."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel
from sglang_dualpath.platform.hicache import host_pools

from test.unit.platform.attention import pools

PAGES = 8


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    with get_parallel().override(dcp_enabled=False):
        yield


def slots(pages: list[int]) -> torch.Tensor:
    return torch.tensor([page * pools.PAGE_TOKENS + token for page in pages for token in range(pools.PAGE_TOKENS)])


def host_pool(pool: Any, layout: str, **more: Any) -> Any:
    host_class = MLATokenToKVPoolHost if more else MHATokenToKVPoolHost
    _, options = host_pools.without_pinning(
        host_to_device_ratio=1.0,
        host_size=0,
        page_size=pools.PAGE_TOKENS,
        layout=layout,
        pin_memory=True,
        device_capacity_tokens=pools.SLOTS,
        start_layer=0,
        end_layer=2,
        host_token_capacity=PAGES * pools.PAGE_TOKENS,
        **more,
    )
    return host_class(pool.get_device_pool_infos()[0].buffer_info, **options)


def layers(pool: Any) -> list[torch.Tensor]:
    """The pool's buffers of each layer, filled with what tells every element apart."""
    buffers = list(pool.kv_buffer) if hasattr(pool, "kv_buffer") else [*pool.k_buffer, *pool.v_buffer]
    for index, buffer in enumerate(buffers):
        buffer.copy_(torch.arange(buffer.numel()).view_as(buffer) * len(buffers) + index)
    return buffers


def check_round_trip(pool: Any, host: Any, back_up: Any, load: Any, io_backend: str) -> None:
    buffers = layers(pool)
    originals = [buffer.clone() for buffer in buffers]
    back_up(None, host, pool, slots([6, 1, 3]), slots([9, 2, 40]), io_backend)
    for buffer in buffers:
        buffer.zero_()
    for layer in range(2):
        load(None, host, pool, slots([3, 6]), slots([11, 12]), layer, io_backend)
    for buffer, original in zip(buffers, originals, strict=True):
        assert torch.equal(buffer[slots([11, 12])], original[slots([40, 9])])
        assert int(buffer.count_nonzero()) == int(original[slots([40, 9])].count_nonzero())


@pytest.mark.parametrize(
    ("layout", "io_backend"),
    [("layer_first", "kernel"), ("page_first", "kernel"), ("page_head", "kernel"), ("page_first_direct", "direct")],
)
def test_keys_and_values_come_back(layout: str, io_backend: str) -> None:
    pool = pools.mha_pool()
    host = host_pool(pool, layout)
    check_round_trip(pool, host, host_pools.back_up_mha, host_pools.load_mha_layer, io_backend)


@pytest.mark.parametrize(
    ("layout", "io_backend"), [("layer_first", "kernel"), ("page_first", "kernel"), ("page_first_direct", "direct")]
)
def test_latent_rows_come_back(layout: str, io_backend: str) -> None:
    pool = pools.mla_pool()
    host = host_pool(pool, layout, target_layer_num=2)
    check_round_trip(pool, host, host_pools.back_up_mla, host_pools.load_mla_layer, io_backend)


def test_a_layer_of_another_stage_is_not_loaded() -> None:
    pool = pools.mha_pool()
    host = host_pool(pool, "page_first")
    before = [buffer.clone() for buffer in layers(pool)]
    host_pools.load_mha_layer(None, host, pool, slots([0]), slots([1]), 2, "kernel")
    assert all(torch.equal(now, then) for now, then in zip([*pool.k_buffer, *pool.v_buffer], before, strict=True))


def test_no_memory_is_pinned() -> None:
    assert host_pools.without_pinning(1, pin_memory=True, layout="page_first") == (
        (1,),
        {"pin_memory": False, "layout": "page_first"},
    )


def test_sharded_latent_pools_are_refused() -> None:
    host = host_pool(pools.mla_pool(), "page_first", target_layer_num=2)
    host._layer_shard_enabled = True
    with pytest.raises(NotImplementedError, match="sharded layers"):
        host_pools.load_mla_layer(None, host, None, slots([0]), slots([1]), 0, "kernel")

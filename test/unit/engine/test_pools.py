"""Upstream's pools by their very class: one plain row a token is understood, everything else is refused by name."""

import numpy as np
import pytest
import torch
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.paged import PagedMha, PagedMla
from sglang_dualpath.config import FlagError
from sglang_dualpath.engine.pools import paged_layers


def pool(name: str, **buffers: list[torch.Tensor]) -> object:
    """A pool whose class has this name."""
    return type(name, (), buffers)()


def test_an_mha_pool_is_k_and_v() -> None:
    k = [torch.ones(4, 2, 8) for _ in range(2)]
    v = [torch.zeros(4, 2, 8) for _ in range(2)]
    paged, kind = paged_layers(pool("MHATokenToKVPool", k_buffer=k, v_buffer=v))
    assert kind == "mha"
    assert isinstance(paged, PagedMha)
    assert paged.geometry == BlockGeometry(2, 128)
    rows = np.empty((1, 128), dtype=np.uint8)
    paged.gather(0, torch.tensor([3]), rows)
    assert rows.view(np.float32).tolist() == [[1.0] * 16 + [0.0] * 16]


def test_an_mla_pool_is_its_latent_rows() -> None:
    paged, kind = paged_layers(pool("MLATokenToKVPool", kv_buffer=[torch.zeros(4, 1, 6)] * 3))
    assert kind == "mla"
    assert isinstance(paged, PagedMla)
    assert paged.geometry == BlockGeometry(3, 24)


@pytest.mark.parametrize("name", ["MHATokenToKVPoolFP4", "MLATokenToKVPoolFP4", "SWAKVPool", "HybridLinearKVPool"])
def test_a_pool_with_rows_of_another_kind_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(FlagError, match=f"--kv-path .*{name}"):
        paged_layers(pool(name, k_buffer=[], v_buffer=[]))


def test_a_subclass_is_not_taken_for_its_base() -> None:
    base = type("MHATokenToKVPool", (), {"k_buffer": [], "v_buffer": []})
    with pytest.raises(FlagError, match="Packed"):
        paged_layers(type("Packed", (base,), {})())


def test_the_classes_exist_upstream() -> None:
    from sglang.srt.mem_cache import memory_pool

    assert memory_pool.MHATokenToKVPool.__name__ == "MHATokenToKVPool"
    assert memory_pool.MLATokenToKVPool.__name__ == "MLATokenToKVPool"

"""Paged pools as bytes: what is gathered and scattered is exactly the rows of those slots, in every data type."""

import numpy as np
import pytest
import torch
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.paged import PagedLayers, PagedMha, PagedMla

N_SLOTS = 40
N_LAYERS = 3
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def random_layer(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A pool of one layer whose bytes are random, NaN patterns included."""
    generator = torch.Generator().manual_seed(seed)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, 256, (n_bytes,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def mha_tensors(dtype: torch.dtype, seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """K and V layers whose rows differ in size: 2 heads of 8, and 2 heads of 4."""
    k = [random_layer(seed + i, (N_SLOTS, 2, 8), dtype) for i in range(N_LAYERS)]
    v = [random_layer(seed + 10 + i, (N_SLOTS, 2, 4), dtype) for i in range(N_LAYERS)]
    return k, v


def mla_tensors(dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Latent layers: one row of 12 a slot."""
    return [random_layer(seed + i, (N_SLOTS, 1, 12), dtype) for i in range(N_LAYERS)]


def row_bytes(pool: torch.Tensor, slot: int) -> bytes:
    """A slot's bytes, the plain way."""
    return pool[slot].contiguous().view(torch.uint8).numpy().tobytes()


def some_slots(n: int, seed: int = 5) -> torch.Tensor:
    """`n` distinct slots in no order."""
    return torch.randperm(N_SLOTS, generator=torch.Generator().manual_seed(seed))[:n]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_of_mha_is_its_k_row_then_its_v_row(dtype: torch.dtype) -> None:
    k, v = mha_tensors(dtype)
    paged = PagedMha(k, v)
    assert paged.geometry == BlockGeometry(N_LAYERS, 24 * dtype.itemsize)
    slots = some_slots(7)
    for layer in range(N_LAYERS):
        out = np.zeros((7, paged.geometry.token_bytes), dtype=np.uint8)
        paged.gather(layer, slots, out)
        for row, slot in zip(out, slots.tolist(), strict=True):
            assert row.tobytes() == row_bytes(k[layer], slot) + row_bytes(v[layer], slot)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_of_mla_is_its_latent_row(dtype: torch.dtype) -> None:
    latent = mla_tensors(dtype)
    paged = PagedMla(latent)
    assert paged.geometry == BlockGeometry(N_LAYERS, 12 * dtype.itemsize)
    slots = some_slots(7)
    for layer in range(N_LAYERS):
        out = np.zeros((7, paged.geometry.token_bytes), dtype=np.uint8)
        paged.gather(layer, slots, out)
        for row, slot in zip(out, slots.tolist(), strict=True):
            assert row.tobytes() == row_bytes(latent[layer], slot)


@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_scattered_into_another_pool_are_the_same_bytes_and_nothing_else_changes(
    kind: str, dtype: torch.dtype
) -> None:
    def pool(seed: int) -> tuple[PagedLayers, list[torch.Tensor]]:
        if kind == "mla":
            tensors = mla_tensors(dtype, seed)
            return PagedMla(tensors), tensors
        k, v = mha_tensors(dtype, seed)
        return PagedMha(k, v), [*k, *v]

    source, source_tensors = pool(0)
    target, target_tensors = pool(100)
    untouched = [tensor.clone() for tensor in target_tensors]
    origin, destination = some_slots(9, seed=1), some_slots(9, seed=2)
    for layer in range(N_LAYERS):
        rows = np.zeros((9, source.geometry.token_bytes), dtype=np.uint8)
        source.gather(layer, origin, rows)
        target.scatter(layer, destination, rows)
    target.synchronize()
    came_from = dict(zip(destination.tolist(), origin.tolist(), strict=True))
    for there, here, before in zip(target_tensors, source_tensors, untouched, strict=True):
        for slot in range(N_SLOTS):
            expected = row_bytes(here, came_from[slot]) if slot in came_from else row_bytes(before, slot)
            assert row_bytes(there, slot) == expected


def test_rows_may_be_a_part_of_a_larger_block() -> None:
    paged = PagedMla(mla_tensors(torch.bfloat16))
    block = np.zeros((N_LAYERS, 64, paged.geometry.token_bytes), dtype=np.uint8)
    slots = some_slots(10)
    paged.gather(1, slots, block[1, 20:30])
    assert block[1, 20].tobytes() == row_bytes(mla_tensors(torch.bfloat16)[1], int(slots[0]))
    assert not block[0].any()
    assert not block[1, :20].any()
    assert not block[1, 30:].any()


def test_slots_of_32_bits_are_slots() -> None:
    paged = PagedMla(mla_tensors(torch.float32))
    slots = some_slots(5)
    wide, narrow = (np.zeros((5, paged.geometry.token_bytes), dtype=np.uint8) for _ in range(2))
    paged.gather(0, slots, wide)
    paged.gather(0, slots.to(torch.int32), narrow)
    assert np.array_equal(wide, narrow)


def test_a_pool_that_would_have_to_be_copied_is_refused() -> None:
    strided = torch.zeros(N_SLOTS, 2, 8).transpose(1, 2)
    with pytest.raises((ValueError, RuntimeError)):
        PagedMla([strided])


@pytest.mark.parametrize(("n_k", "n_v"), [(0, 0), (2, 1)])
def test_layers_that_do_not_pair_up_are_refused(n_k: int, n_v: int) -> None:
    layer = torch.zeros(N_SLOTS, 2, 8)
    with pytest.raises(ValueError, match=f"{n_k} K layers and {n_v} V layers"):
        PagedMha([layer] * n_k, [layer] * n_v)


def test_a_pool_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="without layers"):
        PagedMla([])

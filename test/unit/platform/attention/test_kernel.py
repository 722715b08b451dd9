"""Attention of a sequence's newest tokens, whatever its heads, window, cap and lengths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.platform.attention import kernel
from sglang_dualpath.platform.attention.kernel import CausalMasks, attend

from test.unit.platform.attention.reference import attention


def tensors(
    rows: int, tokens: int, kv_heads: int, group: int, dim: int, value_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + tokens)
    query = torch.randn(rows, kv_heads * group, dim, generator=generator)
    keys = torch.randn(tokens, kv_heads, dim, generator=generator)
    values = torch.randn(tokens, kv_heads, value_dim, generator=generator)
    return query, keys, values


@settings(max_examples=60)
@given(
    rows=st.integers(1, 20),
    prefix=st.integers(0, 70),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 3, 4]),
    window=st.sampled_from([None, 0, 5, 64]),
    logit_cap=st.sampled_from([0.0, 2.0]),
    value_dim=st.sampled_from([8, 16]),
)
def test_it_is_attention(
    rows: int, prefix: int, kv_heads: int, group: int, window: int | None, logit_cap: float, value_dim: int
) -> None:
    query, keys, values = tensors(rows, prefix + rows, kv_heads, group, 16, value_dim)
    result = attend(query, keys, values, 0.3, CausalMasks(window), logit_cap)
    expected = attention(query, keys, values, 0.3, window=window, logit_cap=logit_cap)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


def test_without_masks_every_query_sees_every_key() -> None:
    query, keys, values = tensors(5, 9, 2, 2, 16, 16)
    result = attend(query, keys, values, 0.25, None)
    torch.testing.assert_close(
        result.double(), attention(query, keys, values, 0.25, causal=False), rtol=1e-4, atol=1e-5
    )


def test_absorbed_latent_rows_are_their_own_values() -> None:
    query, keys, _ = tensors(3, 40, 1, 4, 24, 24)
    result = attend(query, keys, keys, 0.2, CausalMasks())[..., :16]
    torch.testing.assert_close(result.double(), attention(query, keys, keys[..., :16], 0.2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 30])
def test_pieces_change_nothing(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys, values = tensors(100, 130, 2, 3, 16, 16)
    whole = attend(query, keys, values, 0.25, CausalMasks(window))
    monkeypatch.setattr(kernel, "ROWS_PER_PIECE", 7)
    torch.testing.assert_close(attend(query, keys, values, 0.25, CausalMasks(window)), whole, rtol=1e-5, atol=1e-6)


def test_the_mask_has_the_type_of_the_query() -> None:
    query, keys, values = (tensor.bfloat16() for tensor in tensors(12, 40, 1, 3, 16, 16))
    result = attend(query, keys, values, 0.25, CausalMasks())
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), attention(query, keys, values, 0.25), rtol=2e-2, atol=2e-2)


def test_masks_are_made_once() -> None:
    masks = CausalMasks()
    assert masks.pieces(8, 20, torch.float32) is masks.pieces(8, 20, torch.float32)


def test_a_piece_sees_no_key_after_it_and_none_before_its_window() -> None:
    pieces = CausalMasks(window=10).pieces(kernel.ROWS_PER_PIECE + 4, 1000, torch.float32)
    spans = [(piece.first_row, piece.stop_row, piece.first_key, piece.stop_key) for piece in pieces]
    prefix = 1000 - kernel.ROWS_PER_PIECE - 4
    assert spans == [
        (0, kernel.ROWS_PER_PIECE, prefix - 10, 996),
        (kernel.ROWS_PER_PIECE, kernel.ROWS_PER_PIECE + 4, 986, 1000),
    ]

"""Attention of one sequence's newest tokens over all its tokens: pure tensor functions, no pools, no batches."""

import torch
from torch.nn.functional import scaled_dot_product_attention

ROWS_PER_PIECE = 512
"""Query tokens computed at once: bounds the mask, and skips most of the keys that causality hides."""

FOLD_ROWS = 8
"""Up to so many query tokens, the query heads that share a KV head are computed as further rows of it.

Keys and values are then read once a KV head; with more rows the arithmetic outweighs the reading.
"""


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    masks: "CausalMasks | None",
    logit_cap: float = 0.0,
) -> torch.Tensor:
    """Attention of the last `rows` of `tokens` tokens.

    query [rows, query_heads, dim]; keys [tokens, kv_heads, dim]; values [tokens, kv_heads, value_dim], value_dim <= dim;
    returns [rows, query_heads, value_dim].
    Without masks every query sees every key. `logit_cap` > 0 caps the scaled scores with a tanh.
    """
    rows, query_heads, _ = query.shape
    output = query.new_empty((rows, query_heads, values.shape[2]))
    if masks is None:
        output.copy_(_attend_piece(query, keys, values, scaling, None, logit_cap))
        return output
    for piece in masks.pieces(rows, keys.shape[0], query.dtype):
        span = slice(piece.first_key, piece.stop_key)
        rows_of_piece = slice(piece.first_row, piece.stop_row)
        output[rows_of_piece] = _attend_piece(
            query[rows_of_piece], keys[span], values[span], scaling, piece.mask, logit_cap
        )
    return output


def _attend_piece(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None,
    logit_cap: float,
) -> torch.Tensor:
    rows, query_heads, dim = query.shape
    kv_heads, value_dim = keys.shape[1], values.shape[2]
    group = query_heads // kv_heads
    # [kv_heads, group, rows, dim]: KV heads are the batch, so that keys and values need no copy a query head.
    by_head = query.view(rows, kv_heads, group, dim).permute(1, 2, 0, 3)
    folded = rows <= FOLD_ROWS and group > 1
    if folded:
        by_head = by_head.reshape(kv_heads, 1, group * rows, dim)
        mask = None if mask is None else mask.repeat(group, 1)
    shape = (kv_heads, by_head.shape[1], keys.shape[0])
    keys_by_head = keys.transpose(0, 1).unsqueeze(1).expand(*shape, dim)
    values_by_head = values.transpose(0, 1).unsqueeze(1).expand(*shape, value_dim)
    if logit_cap > 0:
        result = _capped_attention(by_head, keys_by_head, values_by_head, scaling, mask, logit_cap)
    elif value_dim == dim:
        result = scaled_dot_product_attention(by_head, keys_by_head, values_by_head, attn_mask=mask, scale=scaling)
    else:
        result = _narrow_value_attention(by_head, keys_by_head, values_by_head, scaling, mask)
    if folded:
        result = result.reshape(kv_heads, group, rows, value_dim)
    return result.permute(2, 0, 1, 3).reshape(rows, query_heads, value_dim)


def _narrow_value_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Values narrower than keys: padded to the keys' width, which is what torch's fused kernel takes."""
    padded = torch.nn.functional.pad(values[:, :1], (0, keys.shape[3] - values.shape[3])).expand(keys.shape)
    return scaled_dot_product_attention(query, keys, padded, attn_mask=mask, scale=scaling)[..., : values.shape[3]]


def _capped_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None,
    logit_cap: float,
) -> torch.Tensor:
    scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scaling
    scores = torch.tanh(scores / logit_cap) * logit_cap
    if mask is not None:
        scores = scores + mask
    return torch.matmul(scores.softmax(dim=-1), values.float()).to(query.dtype)


class CausalMasks:
    """The masks of one sequence in one forward pass, made once and used by all its layers.

    `window`: how many tokens before itself a token sees; None for all.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self._made: dict[tuple[int, int, torch.dtype], list[MaskedPiece]] = {}

    def pieces(self, rows: int, tokens: int, dtype: torch.dtype) -> "list[MaskedPiece]":
        """Consecutive pieces of the `rows` newest of `tokens` tokens, each with the keys it can see at all."""
        key = (rows, tokens, dtype)
        if key not in self._made:
            starts = range(0, rows, ROWS_PER_PIECE)
            self._made[key] = [
                self._piece(start, min(start + ROWS_PER_PIECE, rows), tokens - rows, dtype) for start in starts
            ]
        return self._made[key]

    def _piece(self, first_row: int, stop_row: int, prefix: int, dtype: torch.dtype) -> "MaskedPiece":
        first_position, stop_key = prefix + first_row, prefix + stop_row
        first_key = 0 if self.window is None else max(0, first_position - self.window)
        if stop_row - first_row == 1:
            return MaskedPiece(first_row, stop_row, first_key, stop_key, None)
        positions = torch.arange(first_position, stop_key).unsqueeze(1)
        key_positions = torch.arange(first_key, stop_key).unsqueeze(0)
        hidden = key_positions > positions
        if self.window is not None:
            hidden |= key_positions < positions - self.window
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        return MaskedPiece(first_row, stop_row, first_key, stop_key, mask)


class MaskedPiece:
    """Query rows [first_row, stop_row) over keys [first_key, stop_key); no mask: all of them are seen."""

    __slots__ = ("first_key", "first_row", "mask", "stop_key", "stop_row")

    def __init__(self, first_row: int, stop_row: int, first_key: int, stop_key: int, mask: torch.Tensor | None) -> None:
        self.first_row = first_row
        self.stop_row = stop_row
        self.first_key = first_key
        self.stop_key = stop_key
        self.mask = mask

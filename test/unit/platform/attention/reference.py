"""Attention written down as its definition, in float64: what the kernel is measured against."""

import math

import torch


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    causal: bool = True,
    window: int | None = None,
    logit_cap: float = 0.0,
) -> torch.Tensor:
    """Row by row and head by head; shapes as `platform.attention.kernel.attend`."""
    rows, query_heads, _ = query.shape
    tokens, kv_heads, value_dim = values.shape
    output = torch.zeros(rows, query_heads, value_dim, dtype=torch.float64)
    for row in range(rows):
        position = tokens - rows + row
        first = 0 if window is None or not causal else max(0, position - window)
        stop = position + 1 if causal else tokens
        for head in range(query_heads):
            kv_head = head // (query_heads // kv_heads)
            scores = keys[first:stop, kv_head].double() @ query[row, head].double() * scaling
            if logit_cap:
                scores = torch.tanh(scores / logit_cap) * logit_cap
            weights = torch.exp(scores - scores.max())
            output[row, head] = (weights / weights.sum()) @ values[first:stop, kv_head].double()
    assert not any(math.isnan(value) for value in output.flatten().tolist())
    return output

"""The shape of a block of KV (paper section 'blocks').

A Full Block is `[layer, tokens, bytes]`, the unit of storage. A Layer Block is `[1, tokens, bytes]`, the unit of
transfer and of loads into the device. n Layer Blocks end to end are a Full Block: no conversion anywhere.
"""

from dataclasses import dataclass

BLOCK_TOKENS = 64
"""Tokens of a block, as in the paper."""


@dataclass(frozen=True, slots=True)
class BlockGeometry:
    """Layers, tokens and bytes of a block; `token_bytes` is one token's bytes in one layer."""

    n_layers: int
    token_bytes: int
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        if min(self.n_layers, self.token_bytes, self.block_tokens) <= 0:
            raise ValueError(f"a block needs at least one layer, token and byte: {self}")

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of a Layer Block."""
        return self.block_tokens * self.token_bytes

    @property
    def full_block_bytes(self) -> int:
        """Bytes of a Full Block."""
        return self.n_layers * self.layer_block_bytes

    def layer_offset_bytes(self, layer: int) -> int:
        """Where a layer's Layer Block begins in its Full Block. Raises IndexError for a layer that is not there."""
        if not 0 <= layer < self.n_layers:
            raise IndexError(f"layer {layer} of a block of {self.n_layers} layers")
        return layer * self.layer_block_bytes

    def span(self, layer: int, start_token: int, stop_token: int) -> tuple[int, int]:
        """`(offset_bytes, length_bytes)` in the Full Block of a layer's tokens [start, stop)."""
        if not 0 <= start_token <= stop_token <= self.block_tokens:
            raise IndexError(f"tokens [{start_token}, {stop_token}) of a block of {self.block_tokens}")
        offset = self.layer_offset_bytes(layer) + start_token * self.token_bytes
        return offset, (stop_token - start_token) * self.token_bytes

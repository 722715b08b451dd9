"""A prompt's prefix as few keys: every key block at first, then every fourth.

A long prompt is told apart early; further on it only counts how far it is held, to within three blocks.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DENSE_BLOCKS = 16
STRIDE_BLOCKS = 4
KEY_BLOCK_TOKENS = 128
"""Tokens one key stands for (DualMap's block)."""


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Some keys of a prompt, first to last, and the tokens up to the end of each."""

    keys: npt.NDArray[np.uint64]
    ends_tokens: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ends_tokens)

    @staticmethod
    def of(keys: tuple[int, ...]) -> "Marks":
        """The marks of a prompt's keys, one a full key block."""
        positions, ends = _positions(len(keys))
        chosen = keys if len(positions) == len(keys) else [keys[i] for i in positions]
        return Marks(np.array(chosen, dtype=np.uint64), ends)


@functools.lru_cache(maxsize=4096)
def _positions(n_keys: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    positions = tuple(i for i in range(n_keys) if i < DENSE_BLOCKS or i % STRIDE_BLOCKS == STRIDE_BLOCKS - 1)
    return positions, tuple((i + 1) * KEY_BLOCK_TOKENS for i in positions)

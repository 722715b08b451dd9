"""Which key blocks an engine probably still holds in its own memory: what it was given last, within a bound.

A set-associative table of 64-bit keys (0 marks an empty place) with the time of their last use: 8,192 blocks (a million tokens)
take 96 KiB. The table is made at the first insertion.
"""

import numpy as np
import numpy.typing as npt

from sglang_dualpath.router.scheduling.request import KEY_BLOCK_TOKENS

CAPACITY_BLOCKS = 8192
_WAYS = 8


class CachedBlocks:
    """Approximate: an engine evicts by its own rules, which the router does not see."""

    __slots__ = ("_clock", "_keys", "_n_blocks", "_n_sets", "_used")

    def __init__(self, capacity_blocks: int = CAPACITY_BLOCKS) -> None:
        self._n_sets = max(1, capacity_blocks // _WAYS)
        self._keys: npt.NDArray[np.uint64] | None = None
        self._used: npt.NDArray[np.uint32] | None = None
        self._clock = 0
        self._n_blocks = 0

    @property
    def n_blocks(self) -> int:
        """Blocks held."""
        return self._n_blocks

    @property
    def n_bytes(self) -> int:
        """Memory of the table."""
        return 0 if self._keys is None or self._used is None else self._keys.nbytes + self._used.nbytes

    def hit_tokens(self, keys: tuple[int, ...]) -> int:
        """Tokens of the longest leading run of `keys` that is held."""
        if self._keys is None or not keys or not self._holds(keys[0]):
            return 0
        wanted = np.array(keys, dtype=np.uint64)
        found = (self._keys[wanted % np.uint64(self._n_sets)] == wanted[:, None]).any(axis=1)
        run = len(keys) if found.all() else int(found.argmin())
        return run * KEY_BLOCK_TOKENS

    def insert(self, keys: tuple[int, ...]) -> None:
        """Hold `keys`, used just now; the least recently used of a full set go."""
        if not keys:
            return
        if self._keys is None or self._used is None:
            self._keys = np.zeros((self._n_sets, _WAYS), dtype=np.uint64)
            self._used = np.zeros((self._n_sets, _WAYS), dtype=np.uint32)
        self._clock += 1
        wanted = np.array(keys, dtype=np.uint64)
        sets = wanted % np.uint64(self._n_sets)
        same = self._keys[sets] == wanted[:, None]
        present = same.any(axis=1)
        self._used[sets[present], same[present].argmax(axis=1)] = self._clock
        # One at a time from here: several new keys may fall into one set.
        for key, place in zip(wanted[~present], sets[~present], strict=True):
            way = int(self._used[place].argmin())
            self._n_blocks += int(self._used[place, way] == 0)
            self._keys[place, way] = key
            self._used[place, way] = self._clock

    def _holds(self, key: int) -> bool:
        assert self._keys is not None
        return bool((self._keys[key % self._n_sets] == np.uint64(key)).any())

"""Which prefixes an engine probably still holds in its own memory: what it was given last, within a bound.

A set-associative table of 64-bit keys (0 is an empty place) with the time of their last use: 8,192 marks (3 million tokens of
long prompts) take 96 KiB. The table is made at the first insertion.
"""

import numpy as np
import numpy.typing as npt

from sglang_dualpath.router.scheduling.marks import Marks

CAPACITY_MARKS = 8192
_WAYS = 8


class CachedBlocks:
    """Approximate: an engine evicts by its own rules, which the router does not see."""

    __slots__ = ("_clock", "_keys", "_mask", "_n_marks", "_used")

    def __init__(self, capacity_marks: int = CAPACITY_MARKS) -> None:
        """`capacity_marks`: 8 times a power of 2."""
        self._mask = np.uint64(capacity_marks // _WAYS - 1)
        self._keys: npt.NDArray[np.uint64] | None = None
        self._used: npt.NDArray[np.uint32] | None = None
        self._clock = 0
        self._n_marks = 0

    @property
    def version(self) -> int:
        """Grows with each insertion."""
        return self._clock

    @property
    def n_marks(self) -> int:
        """Marks held."""
        return self._n_marks

    @property
    def n_bytes(self) -> int:
        """Memory of the table."""
        return 0 if self._keys is None or self._used is None else self._keys.nbytes + self._used.nbytes

    def hit_tokens(self, marks: Marks) -> int:
        """Tokens of the longest leading run of `marks` that is held."""
        if self._keys is None or not len(marks):
            return 0
        wanted = marks.keys
        if not (self._keys[wanted[0] & self._mask] == wanted[0]).any():
            return 0
        found = (self._keys[wanted & self._mask] == wanted[:, None]).any(axis=1)
        run = len(found) if found[-1] and found.all() else int(found.argmin())
        return marks.ends_tokens[run - 1]

    def insert(self, marks: Marks) -> None:
        """Hold `marks`, used just now; the least recently used of a full set go."""
        if not len(marks):
            return
        if self._keys is None or self._used is None:
            shape = (int(self._mask) + 1, _WAYS)
            self._keys, self._used = np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=np.uint32)
        self._clock += 1
        wanted = marks.keys
        sets = wanted & self._mask
        same = self._keys[sets] == wanted[:, None]
        present = same.any(axis=1)
        if present.any():
            self._used[sets[present], same[present].argmax(axis=1)] = self._clock
        missing = ~present
        wanted, sets = wanted[missing], sets[missing]
        while len(wanted):
            # Several new keys may fall into one set: one of them at a time.
            _, first = np.unique(sets, return_index=True)
            places = sets[first]
            ways = self._used[places].argmin(axis=1)
            self._n_marks += int((self._used[places, ways] == 0).sum())
            self._keys[places, ways] = wanted[first]
            self._used[places, ways] = self._clock
            if len(first) == len(wanted):
                return
            left = np.ones(len(wanted), dtype=bool)
            left[first] = False
            wanted, sets = wanted[left], sets[left]

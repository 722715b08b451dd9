"""How long a prefix must be to be hashed on its own: hot prefixes are split, cooled ones shrink back (DualMap).

Over a sliding window of requests each prefix has a traffic share rho. One with rho > `split_factor` / n (n engines) is hot: its
requests are told apart by one block more, and so on down the tree. It cools when rho < `shrink_factor` / n; between the two it
stays what it was, so that a share near the bound does not move its requests to and fro. A prefix needs `min_samples` requests to
be hot, and with many engines the window grows until a hot one can have them.
"""

from collections import deque

MAX_DEPTH = 512
"""Key blocks a prefix is split over at most: 65,536 tokens of tools and system prompt in common."""

LOOKAHEAD = 8
"""Blocks counted beyond the present depth, so that a long common prefix is split a few blocks a request, not one."""


class PrefixPopularity:
    """O(depth) a request; holds the window's keys, to their depth."""

    def __init__(
        self, window: int = 200, min_samples: int = 20, split_factor: float = 2.0, shrink_factor: float = 1.0
    ) -> None:
        self._window = window
        self._min_samples = min_samples
        self._split_factor = split_factor
        self._shrink_factor = shrink_factor
        self._seen: deque[tuple[int, ...]] = deque()
        self._counts: dict[int, int] = {}
        self._hot: set[int] = set()

    def observe(self, keys: tuple[int, ...], n_engines: int) -> None:
        """One more request with these key blocks."""
        keys = keys[: min(self.depth(keys) + LOOKAHEAD, MAX_DEPTH)]
        self._seen.append(keys)
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
        window = max(self._window, round(self._min_samples * n_engines / self._split_factor))
        while len(self._seen) > window:
            gone = self._seen.popleft()
            for key in gone:
                self._forget_one(key)
            self._judge(gone, n_engines)
        self._judge(keys, n_engines)

    def depth(self, keys: tuple[int, ...]) -> int:
        """How many key blocks tell a request's prefix apart; 0 without any."""
        depth = 1
        for key in keys[: MAX_DEPTH - 1]:
            if key not in self._hot or depth >= len(keys):
                break
            depth += 1
        return min(depth, len(keys))

    def share(self, key: int) -> float:
        """rho: the share of the window's requests with this prefix."""
        return self._counts.get(key, 0) / len(self._seen) if self._seen else 0.0

    def _forget_one(self, key: int) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._hot.discard(key)

    def _judge(self, keys: tuple[int, ...], n_engines: int) -> None:
        if n_engines < 1:
            return
        split = self._split_factor / n_engines
        shrink = self._shrink_factor / n_engines
        for key in keys:
            rho = self.share(key)
            if rho > split and self._counts[key] >= self._min_samples:
                self._hot.add(key)
            elif rho < shrink:
                self._hot.discard(key)

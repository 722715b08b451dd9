"""How fast this engine computes or reads, in tokens a second: alpha is 3 s of reading, beta 5 s of computing."""

import threading

INITIAL_TOKENS_PER_S = 20_000.0
"""Assumed until the first forward has been measured."""

_WEIGHT = 0.2


class ComputeRate:
    """A moving average over forwards. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens_per_s = INITIAL_TOKENS_PER_S
        self._measured = False

    def observe(self, tokens: int, elapsed_s: float) -> None:
        """A forward brought requests of `tokens` tokens, cached ones included, `elapsed_s` further."""
        if tokens <= 0 or elapsed_s <= 0:
            return
        with self._lock:
            rate = tokens / elapsed_s
            self._tokens_per_s = (1 - _WEIGHT) * self._tokens_per_s + _WEIGHT * rate if self._measured else rate
            self._measured = True

    @property
    def measured_tokens_per_s(self) -> float | None:
        """The average so far; None before the first forward."""
        return self._tokens_per_s if self._measured else None

    @property
    def tokens_per_s(self) -> float:
        """The average so far."""
        return self._tokens_per_s

"""A circuit breaker for one server: failures in a row open it, after a while one request at a time tries it again.

Closed: all requests pass. Open: none, until `open_s` has gone by. Half-open: one at a time; `success_threshold` good ones
close it, one failure opens it again.
Knobs: `BreakerSettings`, the flags `--cb-*` that users of sglang_router know.
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """See the module."""

    failure_threshold: int = 10
    """Failures within `window_s` that open it; 0 switches it off."""
    success_threshold: int = 3
    window_s: float = 120.0
    open_s: float = 60.0


class Breaker:
    """See the module. Times are given, never read."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._failed_at_s: list[float] = []
        self._opened_at_s: float | None = None
        self._trials = 0
        self._successes = 0
        self.n_opened = 0

    def state(self, now_s: float) -> State:
        """Where it stands."""
        if self._opened_at_s is None:
            return "closed"
        return "half_open" if now_s - self._opened_at_s >= self._settings.open_s else "open"

    def allows(self, now_s: float) -> bool:
        """Whether a request may pass now."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and self._trials == 0)

    def begin(self, now_s: float) -> None:
        """A request passes."""
        if self.state(now_s) == "half_open":
            self._trials += 1

    def end(self, now_s: float, failed: bool | None) -> None:
        """A request that passed has ended; None: for a reason that says nothing of the server."""
        if self._opened_at_s is not None:
            self._end_trial(now_s, failed)
        elif failed:
            self._failed_at_s = [at for at in self._failed_at_s if now_s - at <= self._settings.window_s]
            self._failed_at_s.append(now_s)
            if 0 < self._settings.failure_threshold <= len(self._failed_at_s):
                self._open(now_s)
        elif failed is False:
            self._failed_at_s.clear()

    def _end_trial(self, now_s: float, failed: bool | None) -> None:
        # Requests from before it opened end here too: they say something only while it tries again.
        if self._trials == 0:
            return
        self._trials -= 1
        if failed:
            self._open(now_s)
        elif failed is False:
            self._successes += 1
            if self._successes >= self._settings.success_threshold:
                self._opened_at_s = None
                self._failed_at_s.clear()

    def _open(self, now_s: float) -> None:
        self._opened_at_s = now_s
        self._trials = self._successes = 0
        self.n_opened += 1

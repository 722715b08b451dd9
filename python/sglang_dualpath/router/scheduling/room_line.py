"""The line of requests that wait for room on a decode engine.

Those that fit overtake those that do not (no global FIFO; paper, DE scheduling). One that has been overtaken for longer than
`ROOM_PATIENCE_S` holds up everyone behind it, and the queue, while there is no room for it.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterator

from sglang_dualpath.router.scheduling.elsewhere import Elsewhere
from sglang_dualpath.router.scheduling.request import Assignment, Request

ROOM_PATIENCE_S = 10.0
"""A request overtaken this long for want of room on a decode engine holds up those behind it."""

ROOM_LOOKAHEAD = 16
"""Requests looked at in a run."""


class Lacking(enum.Enum):
    """What a request waits for."""

    ROOM = enum.auto()
    PREFILL = enum.auto()
    """A prefill engine that is not overloaded, or any at all."""


class RoomLine:
    """Entries of requests that are not `elsewhere` any more are dropped when met."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._line: deque[tuple[Request, float]] = deque()
        self.holds_up = False
        """Whether the last `serve` met one whose patience is at its end."""

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, request: Request, now_s: float) -> None:
        """At the end of the line."""
        self._line.append((request, now_s))

    def take_all(self) -> list[Request]:
        """Everyone, in order; the line is empty after it."""
        line, self._line = self._line, deque()
        return [request for request, _ in line if self._elsewhere.is_here(request)]

    def serve(self, now_s: float, place: Callable[[Request], Assignment | Lacking]) -> Iterator[Assignment]:
        """What `place` makes of the first few; it takes those it is done with out of `elsewhere`."""
        self.holds_up = False
        kept: deque[tuple[Request, float]] = deque()
        try:
            for _ in range(ROOM_LOOKAHEAD):
                waiting = self._next()
                if waiting is None:
                    return
                request, since_s = waiting
                kept.append(waiting)
                made = place(request)
                if not self._elsewhere.is_here(request):
                    kept.pop()
                if isinstance(made, Assignment):
                    yield made
                elif made is Lacking.ROOM and now_s - since_s > ROOM_PATIENCE_S:
                    self.holds_up = True
                    return
        finally:
            self._line.extendleft(reversed(kept))

    def _next(self) -> tuple[Request, float] | None:
        while self._line:
            waiting = self._line.popleft()
            if self._elsewhere.is_here(waiting[0]):
                return waiting
        return None

"""Requests held for the overloaded prefill engine that they are bound to: a line an engine, in order."""

import itertools
from collections import deque

from sglang_dualpath.router.scheduling.elsewhere import Elsewhere
from sglang_dualpath.router.scheduling.request import Request


class HeldLines:
    """Entries of requests that are not `elsewhere` any more are dropped when met."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._lines: dict[str, deque[Request]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def engines(self) -> list[str]:
        """Those that some are held for."""
        return list(self._lines)

    def hold(self, request: Request, engine_id: str) -> None:
        """At the end of an engine's line."""
        self._lines.setdefault(engine_id, deque()).append(request)

    def first(self, engine_id: str) -> Request | None:
        """Who is next in an engine's line."""
        line = self._lines.get(engine_id)
        while line:
            if self._elsewhere.is_here(line[0]):
                return line[0]
            line.popleft()
        self._lines.pop(engine_id, None)
        return None

    def drop_first(self, engine_id: str) -> None:
        """The one that `first` told is not held any more."""
        self._lines[engine_id].popleft()

    def first_few(self, engine_id: str, n_most: int) -> list[Request]:
        """Of an engine's line, the first, in order."""
        line = self._lines[engine_id]
        return [request for request in itertools.islice(line, n_most) if self._elsewhere.is_here(request)]

    def move(self, request: Request, source_id: str, target_id: str) -> bool:
        """From one line to the end of another; False when it is not in it."""
        line = self._lines.get(source_id)
        if line is None or request not in line:
            return False
        line.remove(request)
        self.hold(request, target_id)
        return True

    def take(self, engine_id: str) -> list[Request]:
        """An engine's line, which is empty after it."""
        line = self._lines.pop(engine_id, ())
        return [request for request in line if self._elsewhere.is_here(request)]

"""Rooms that ended before both of their halves, request and destination, were there: the half that comes late ends too."""

import threading
from collections import OrderedDict

CAPACITY = 4096
"""Remembered at once; the oldest goes first. A late half then waits for upstream's bootstrap timeout, as without this."""


class EndedRooms:
    """Thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._reasons: OrderedDict[int, str] = OrderedDict()

    def remember(self, room_id: int, reason: str) -> None:
        """The room has ended with only one half known, or none."""
        with self._lock:
            self._reasons.setdefault(room_id, reason)
            while len(self._reasons) > self._capacity:
                self._reasons.popitem(last=False)

    def take(self, room_id: int) -> str | None:
        """Why the room had ended before its other half came; forgotten with that."""
        with self._lock:
            return self._reasons.pop(room_id, None)

"""The router's queue: by priority, then first come first served; requests may leave from anywhere in it."""

import heapq

from sglang_dualpath.router.scheduling.request import Request

_MOST_GONE = 64
"""Entries of requests that have left, above which (and half) the heap is made anew."""


class WaitingQueue:
    """Every operation costs O(log n), `remove` on average."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._requests: dict[str, tuple[int, Request]] = {}
        self._arrivals = 0
        self.tokens = 0
        """Of all that wait, with what they may generate."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: Request, place: int | None = None) -> None:
        """At the end of its priority, or at the `place` it had before. Raises ValueError for an id that waits already."""
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} waits already")
        if place is None:
            self._arrivals += 1
            place = self._arrivals
        self._requests[request.request_id] = (place, request)
        heapq.heappush(self._heap, (-request.priority, place, request.request_id))
        self.tokens += request.prompt_tokens + request.output_tokens

    def place(self, request_id: str) -> int:
        """Where a waiting request stands: the number of its arrival. Raises KeyError for one that does not wait."""
        return self._requests[request_id][0]

    def head(self) -> Request | None:
        """Who is next."""
        while self._heap:
            _, arrival, request_id = self._heap[0]
            waiting = self._requests.get(request_id)
            if waiting is not None and waiting[0] == arrival:
                return waiting[1]
            heapq.heappop(self._heap)
        return None

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it stands; None for one that does not wait."""
        waiting = self._requests.pop(request_id, None)
        if waiting is None:
            return None
        request = waiting[1]
        self.tokens -= request.prompt_tokens + request.output_tokens
        if len(self._heap) > 2 * len(self._requests) + _MOST_GONE:
            self._heap = [(-one.priority, place, name) for name, (place, one) in self._requests.items()]
            heapq.heapify(self._heap)
        return request

    def all(self) -> list[Request]:
        """Everyone, in no order."""
        return [request for _, request in self._requests.values()]

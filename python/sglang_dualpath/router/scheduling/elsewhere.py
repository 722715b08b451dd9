"""Requests that wait, but not in the queue: held for a prefill engine, or for room on a decode engine.

Lines of such requests keep their entries when one is withdrawn; an entry counts only while it `is_here`.
"""

from sglang_dualpath.router.scheduling.request import Request


class Elsewhere:
    """Every operation is O(1)."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Request, int]] = {}
        self.tokens = 0
        """Of all of them, with what they may generate."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def is_here(self, request: Request) -> bool:
        """Whether this very request waits: another may have come under the id of one that was withdrawn."""
        here = self._requests.get(request.request_id)
        return here is not None and here[0] is request

    def add(self, request: Request, place: int) -> None:
        """Out of the queue, where it stood at `place`."""
        self._requests[request.request_id] = (request, place)
        self.tokens += request.prompt_tokens + request.output_tokens

    def remove(self, request_id: str) -> int | None:
        """Take a request out; the place it had in the queue, None for one that is not here."""
        here = self._requests.pop(request_id, None)
        if here is None:
            return None
        request, place = here
        self.tokens -= request.prompt_tokens + request.output_tokens
        return place

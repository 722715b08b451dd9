"""The router's own queue: requests that no engine may take yet wait here, first come first served."""

import asyncio
from collections import deque
from dataclasses import dataclass, replace

from sglang_dualpath.router.fleet import Fleet
from sglang_dualpath.router.scheduling.engine import Assignment, Policy, RequestFacts


class QueueFull(Exception):
    """The bounded queue has no place left."""


class NoEngines(Exception):
    """No healthy pair of engines; `role` says which kind is missing."""

    def __init__(self, role: str) -> None:
        super().__init__(f"no healthy {role} engine")
        self.role = role


@dataclass(slots=True)
class _Waiting:
    request: RequestFacts
    without: frozenset[str]
    future: "asyncio.Future[tuple[Assignment, int]]"


class Dispatcher:
    """Runs the policy on each arrival and on each change of the fleet."""

    def __init__(self, fleet: Fleet, policy: Policy, queue_size: int) -> None:
        self._fleet = fleet
        self._policy = policy
        self._queue_size = queue_size
        self._waiting: deque[_Waiting] = deque()

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    async def assign(self, request: RequestFacts, without: frozenset[str] = frozenset()) -> tuple[Assignment, int]:
        """An assignment and its fleet ticket, as soon as the policy gives one. `without`: engines to pass over.

        Raises NoEngines or QueueFull.
        """
        waiting = _Waiting(request, without, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.run()
        if not waiting.future.done() and len(self._waiting) > self._queue_size:
            self._waiting.remove(waiting)
            raise QueueFull
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.future.cancelled() and waiting.future.exception() is None:
                self._fleet.end(*waiting.future.result())
            raise

    def run(self) -> None:
        """Serve the queue from its head until its head must go on waiting."""
        while self._waiting:
            head = self._waiting[0]
            if head.future.done():
                self._waiting.popleft()
                continue
            try:
                made = self._try(head.request, head.without)
            except NoEngines as error:
                self._waiting.popleft()
                head.future.set_exception(error)
                continue
            if made is None:
                return
            self._waiting.popleft()
            head.future.set_result(made)

    def _try(self, request: RequestFacts, without: frozenset[str]) -> tuple[Assignment, int] | None:
        prefill = self._fleet.loads("prefill", without)
        decode = self._fleet.loads("decode", without)
        if not prefill or not decode:
            raise NoEngines("decode" if prefill else "prefill")
        assignment = self._policy.assign(request, prefill, decode)
        if assignment is None:
            return None
        if request.read_side is not None:
            assignment = replace(assignment, read_side=request.read_side)
        return assignment, self._fleet.begin(assignment, request.prompt_tokens)

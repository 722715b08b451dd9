"""The scheduler: requests in, assignments out. Pure: the router and the simulator drive it alike.

A request waits in one of three places: in Q, from whose head `run` serves until no prefill engine may take more; held for the
overloaded engine that its policy has bound it to, while others overtake it; or for room on a decode engine, likewise. A report is
also a fetch (paper, scheduling): whoever calls `report`, `submit`, `end_prefill` or `end` calls `run` after it.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_dualpath.router.scheduling.cluster import Cluster, Engine, Role
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice, Policy
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.waiting import WaitingQueue

ROOM_PATIENCE_S = 10.0
"""A request overtaken this long for want of room on a decode engine holds up those behind it."""

HELD_REVIEW_S = 0.05
"""How often held requests are looked at whose own engine is overloaded still: another may have room, or their time be up."""

REBALANCED_PER_ENGINE = 16
"""Held requests of one engine that a round considers moving, first come first."""

ROOM_LOOKAHEAD = 16
"""Requests looked at in a run of those that wait for room."""


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """A request for which no engine of a role is there."""

    request: Request
    role: Role


class Scheduler:
    """See the module. Times are given, never read."""

    def __init__(self, cluster: Cluster, policy: Policy, decode: DecodeChoice, read_side: ReadSide) -> None:
        self.cluster = cluster
        self.policy = policy
        self._decode = decode
        self._read_side = read_side
        self._queue = WaitingQueue()
        self._held: dict[str, deque[Request]] = {}
        self._roomless: deque[tuple[Request, float]] = deque()
        self._elsewhere: set[str] = set()
        """Ids in `_held` or `_roomless`; one that is withdrawn is missing here and dropped when met."""
        self.n_rebalanced = 0
        self._next_review_s = 0.0
        self._to_remember: list[tuple[Request, Engine]] = []
        """Prefixes assigned and not yet in the tables: that comes after the assignment has been given out."""

    @property
    def n_waiting(self) -> int:
        """Requests not assigned yet."""
        return len(self._queue) + len(self._elsewhere)

    def set_available(self, engine: Engine, available: bool) -> None:
        """An engine may be chosen from now on, or no longer; those held for it go back to the queue."""
        if not self.cluster.set_available(engine, available):
            return
        if engine.role == "prefill":
            self.policy.joined(engine) if available else self.policy.left(engine)
        if not available:
            for request in self._held.pop(engine.engine_id, ()):
                self._back_to_queue(request)

    def leave(self, engine_id: str) -> None:
        """An engine is gone for good."""
        engine = self.cluster.engines.get(engine_id)
        if engine is not None:
            self.set_available(engine, False)
            self.cluster.leave(engine_id)

    def submit(self, request: Request) -> None:
        """Take a request into the queue. Raises ValueError for the id of an unfinished one."""
        if request.request_id in self._elsewhere or request.request_id in self.cluster.work:
            raise ValueError(f"request {request.request_id} is known already")
        self._queue.add(request)

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that waits; False when it does not (any more)."""
        if self._queue.remove(request_id) is not None:
            return True
        if request_id in self._elsewhere:
            self._elsewhere.remove(request_id)
            return True
        return False

    def run(self, now_s: float) -> Iterator[Assignment | Unplaceable]:
        """Everything that can be decided now; each assignment is counted on its engines as it is given."""
        yield from self._run(now_s)
        self._remember()

    def _run(self, now_s: float) -> Iterator[Assignment | Unplaceable]:
        self.cluster.expire(now_s)
        if not (self.cluster.prefill and self.cluster.decode):
            yield from self._nobody()
            return
        yield from self._serve_roomless(now_s)
        if self._held:
            review = now_s >= self._next_review_s
            if review:
                self._next_review_s = now_s + HELD_REVIEW_S
                self._rebalance(now_s)
            yield from self._serve_held(now_s, review)
        if self._roomless and now_s - self._roomless[0][1] > ROOM_PATIENCE_S:
            return
        while (request := self._queue.head()) is not None:
            role = self._missing_role(request)
            if role is not None:
                self._queue.remove(request.request_id)
                yield Unplaceable(request, role)
                continue
            choice = self._choose(request, now_s)
            if choice is None:
                return
            self._queue.remove(request.request_id)
            if self.policy.holds and choice.engine.overloaded:
                self._held.setdefault(choice.engine.engine_id, deque()).append(request)
                self._elsewhere.add(request.request_id)
                continue
            assignment = self._assign(request, choice, now_s)
            if assignment is None:
                self._roomless.append((request, now_s))
                self._elsewhere.add(request.request_id)
            else:
                yield assignment

    def end_prefill(self, request_id: str) -> bool:
        """The prefill engine is done with a request; False when that is known, or the request is not."""
        return self.cluster.end_prefill(request_id)

    def end(self, request_id: str) -> bool:
        """An assigned request is over; False when that is known, or the request is not."""
        return self.cluster.end(request_id)

    def _nobody(self) -> Iterator[Unplaceable]:
        role: Role = "decode" if self.cluster.prefill else "prefill"
        self._take_back_all()
        for request in self._queue.all():
            self._queue.remove(request.request_id)
            yield Unplaceable(request, role)

    def _take_back_all(self) -> None:
        held, self._held = self._held, {}
        roomless, self._roomless = self._roomless, deque()
        for request in (*(r for queue in held.values() for r in queue), *(r for r, _ in roomless)):
            self._back_to_queue(request)

    def _back_to_queue(self, request: Request) -> None:
        if request.request_id in self._elsewhere:
            self._elsewhere.remove(request.request_id)
            self._queue.add(request)

    def _missing_role(self, request: Request) -> Role | None:
        """The role of which the request has passed over every engine."""
        if request.passed_over:
            if not self._allowed(request, self.cluster.prefill):
                return "prefill"
            if not self._allowed(request, self.cluster.decode):
                return "decode"
        return None

    @staticmethod
    def _allowed(request: Request, engines: list[Engine]) -> list[Engine]:
        passed_over = request.passed_over
        return [e for e in engines if e.group not in passed_over] if passed_over else engines

    def _remember(self) -> None:
        for request, engine in self._to_remember:
            engine.cached.insert(request.marks)
            if self.cluster.stored is not None:
                self.cluster.stored.insert(request.marks)
        self._to_remember.clear()

    def _choose(self, request: Request, now_s: float) -> Choice | None:
        if self._to_remember:
            self._remember()
        return self.policy.choose(request, self._allowed(request, self.cluster.prefill), now_s)

    def _assign(self, request: Request, choice: Choice, now_s: float) -> Assignment | None:
        """Assign to the chosen prefill engine and a decode engine; None while none of those has room."""
        engines = self._allowed(request, self.cluster.decode)
        decode = self._decode.choose(request, engines, self._queue.tokens)
        if decode is None:
            return None
        prefill = choice.engine
        share = self._read_side.share(request, prefill, decode)
        hit_tokens = known_tokens = 0
        if self.policy.uses_hits:
            hit_tokens = min(prefill.hit_tokens(request), request.prompt_tokens)
            known_tokens = prefill.known_tokens(request)
            self._to_remember.append((request, prefill))
        self.cluster.begin(request, (prefill, decode), share, known_tokens, now_s)
        self.policy.assigned(request, prefill, now_s)
        return Assignment(
            request_id=request.request_id,
            prefill_id=prefill.engine_id,
            decode_id=decode.engine_id,
            decode_read_share=share,
            expected_hit_tokens=hit_tokens,
            reason=choice.reason,
        )

    def _serve_held(self, now_s: float, review: bool) -> Iterator[Assignment]:
        """Each engine's first held requests, as far as their policy finds them an engine that is not overloaded.

        Without a `review` only those whose own engine has worked enough off.
        """
        engines = self.cluster.engines
        for engine_id in list(self._held):
            if not review and engines[engine_id].overloaded:
                continue
            queue = self._held[engine_id]
            while queue:
                request = queue[0]
                if request.request_id not in self._elsewhere:
                    queue.popleft()
                    continue
                if self._missing_role(request) is not None:
                    self._back_to_queue(queue.popleft())
                    continue
                choice = self._choose(request, now_s)
                if choice is None or choice.engine.overloaded:
                    break
                queue.popleft()
                assignment = self._assign(request, choice, now_s)
                if assignment is None:
                    self._roomless.append((request, now_s))
                    continue
                self._elsewhere.remove(request.request_id)
                yield assignment
            if not queue:
                self._held.pop(engine_id, None)

    def _rebalance(self, now_s: float) -> None:
        waiting = [
            (request, self.cluster.engines[engine_id])
            for engine_id, queue in self._held.items()
            for request in itertools.islice(queue, REBALANCED_PER_ENGINE)
            if request.request_id in self._elsewhere
        ]
        moves = self.policy.rebalance(waiting, now_s)
        for move in moves:
            source = self._held.get(move.source.engine_id)
            if source is None or move.request not in source:
                continue
            source.remove(move.request)
            self._held.setdefault(move.target.engine_id, deque()).append(move.request)
            self.n_rebalanced += 1

    def _serve_roomless(self, now_s: float) -> Iterator[Assignment]:
        """Requests that wait for room on a decode engine: the first few, unless the first has waited too long already."""
        kept: deque[tuple[Request, float]] = deque()
        for _ in range(min(ROOM_LOOKAHEAD, len(self._roomless))):
            request, since_s = self._roomless.popleft()
            if request.request_id not in self._elsewhere:
                continue
            if self._missing_role(request) is not None:
                self._back_to_queue(request)
                continue
            choice = self._choose(request, now_s)
            waits = choice is None or (self.policy.holds and choice.engine.overloaded)
            assignment = None if choice is None or waits else self._assign(request, choice, now_s)
            if assignment is None:
                kept.append((request, since_s))
                if now_s - since_s > ROOM_PATIENCE_S:
                    break
                continue
            self._elsewhere.remove(request.request_id)
            yield assignment
        self._roomless.extendleft(reversed(kept))

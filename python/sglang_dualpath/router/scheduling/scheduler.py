"""The scheduler: requests in, assignments out. Pure: the router and the simulator drive it alike.

A request waits in one of three places: in Q, from whose head `run` serves until no prefill engine may take more; held for the
overloaded engine that its policy has bound it to, while others overtake it; or for room on a decode engine, likewise
(`room_line`). One that some engines have failed, while all others are overloaded, is held for one of these. A report is also a
fetch (paper, scheduling): whoever calls `report`, `submit`, `end_prefill` or `end` calls `run` after it.
"""

import math
from collections.abc import Iterator

from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.elsewhere import Elsewhere
from sglang_dualpath.router.scheduling.engine import Engine, Role
from sglang_dualpath.router.scheduling.held import HeldLines
from sglang_dualpath.router.scheduling.placeable import Unplaceable, allowed, missing_role
from sglang_dualpath.router.scheduling.policy.policy import Choice, Policy
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.room_line import Lacking, RoomLine
from sglang_dualpath.router.scheduling.waiting import WaitingQueue

HELD_REVIEW_S = 0.05
"""How often held requests are looked at whose own engine is overloaded still: another may have room, or their time be up."""

REBALANCED_PER_ENGINE = 16
"""Held requests of one engine that a round considers moving, first come first."""


class Scheduler:
    """See the module. Times are given, never read."""

    def __init__(self, cluster: Cluster, policy: Policy, decode: DecodeChoice, read_side: ReadSide) -> None:
        self.cluster = cluster
        self.policy = policy
        self._decode = decode
        self._read_side = read_side
        self._queue = WaitingQueue()
        self._elsewhere = Elsewhere()
        """Everyone in `_held` or `_roomless`."""
        self._held = HeldLines(self._elsewhere)
        self._roomless = RoomLine(self._elsewhere)
        self._most_room: float | None = None
        """No decode engine takes a longer request in this run; None: not known yet."""
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
            for request in self._held.take(engine.engine_id):
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
        return self._queue.remove(request_id) is not None or self._elsewhere.remove(request_id) is not None

    def run(self, now_s: float) -> Iterator[Assignment | Unplaceable]:
        """Everything that can be decided now; each assignment is counted on its engines as it is given.

        Between two of them the caller may make engines available or not, or withdraw and end requests.
        """
        yield from self._run(now_s)
        self._remember()

    def _run(self, now_s: float) -> Iterator[Assignment | Unplaceable]:
        self.cluster.expire(now_s)
        if not (self.cluster.prefill and self.cluster.decode):
            yield from self._nobody()
            return
        self._most_room = None
        if self._roomless:
            yield from self._roomless.serve(now_s, lambda request: self._place_roomless(request, now_s))
            if self._roomless.holds_up:
                return
        if self._held:
            review = now_s >= self._next_review_s
            if review:
                self._next_review_s = now_s + HELD_REVIEW_S
                self._rebalance(now_s)
            yield from self._serve_held(now_s, review)
        yield from self._serve_queue(now_s)

    def end_prefill(self, request_id: str) -> bool:
        """The prefill engine is done with a request; False when that is known, or the request is not."""
        return self.cluster.end_prefill(request_id)

    def end(self, request_id: str) -> bool:
        """An assigned request is over; False as in `end_prefill`."""
        return self.cluster.end(request_id)

    def _nobody(self) -> Iterator[Unplaceable]:
        role: Role = "decode" if self.cluster.prefill else "prefill"
        for engine_id in self._held.engines():
            for request in self._held.take(engine_id):
                self._back_to_queue(request)
        for request in self._roomless.take_all():
            self._back_to_queue(request)
        for request in self._queue.all():
            self._queue.remove(request.request_id)
            yield Unplaceable(request, role)

    def _back_to_queue(self, request: Request) -> None:
        """To the place it had there."""
        self._queue.add(request, self._elsewhere.remove(request.request_id))

    def _remember(self) -> None:
        for request, engine in self._to_remember:
            engine.cached.insert(request.marks)
            if self.cluster.stored is not None:
                self.cluster.stored.insert(request.marks)
        self._to_remember.clear()

    def _choose(self, request: Request, now_s: float) -> Choice | None:
        if self._to_remember:
            self._remember()
        return self.policy.choose(request, allowed(request, self.cluster.prefill), now_s)

    def _choose_decode(self, request: Request) -> Engine | None:
        """None while no decode engine has room. The request is still counted among those that wait."""
        length = request.prompt_tokens + request.output_tokens
        if self._most_room is not None and length > self._most_room:
            return None
        waiting_tokens = self._queue.tokens + self._elsewhere.tokens
        decode = self._decode.choose(request, allowed(request, self.cluster.decode), waiting_tokens)
        if decode is None:
            # Room only shrinks in a run, so that what is found now is a bound until its end.
            self._most_room = self._decode.most_room_tokens(self.cluster.decode)
        return decode

    def _assign(self, request: Request, choice: Choice, decode: Engine, now_s: float) -> Assignment:
        """Give a request to its engines; it does not wait any more."""
        self.withdraw(request.request_id)
        prefill = choice.engine
        share = self._read_side.share(request, prefill, decode)
        hit_tokens = known_tokens = 0
        if self.policy.uses_hits:
            hit_tokens = min(prefill.hit_tokens(request), request.prompt_tokens)
            known_tokens = prefill.known_tokens(request)
            self._to_remember.append((request, prefill))
        self.cluster.begin(request, (prefill, decode), share, known_tokens, now_s)
        if self._most_room is not None and self._most_room < math.inf:
            self._most_room = self._decode.most_room_tokens(self.cluster.decode)
        self.policy.assigned(request, prefill, now_s)
        return Assignment(
            request_id=request.request_id,
            prefill_id=prefill.engine_id,
            decode_id=decode.engine_id,
            decode_read_share=share,
            expected_hit_tokens=hit_tokens,
            reason=choice.reason,
        )

    def _serve_queue(self, now_s: float) -> Iterator[Assignment | Unplaceable]:
        """From the head, until one must wait there."""
        while (request := self._queue.head()) is not None:
            role = missing_role(request, self.cluster)
            if role is not None:
                self._queue.remove(request.request_id)
                yield Unplaceable(request, role)
                continue
            choice = self._choose(request, now_s)
            if choice is None and not request.passed_over:
                return
            if choice is None or (self.policy.holds and choice.engine.overloaded):
                engines = allowed(request, self.cluster.prefill)
                holder = choice.engine if choice else min(engines, key=lambda engine: (engine.tok, engine.seq))
                self._held.hold(request, holder.engine_id)
                self._leave_queue(request)
                continue
            decode = self._choose_decode(request)
            if decode is None:
                self._roomless.add(request, now_s)
                self._leave_queue(request)
            else:
                yield self._assign(request, choice, decode, now_s)

    def _leave_queue(self, request: Request) -> None:
        self._elsewhere.add(request, self._queue.place(request.request_id))
        self._queue.remove(request.request_id)

    def _serve_held(self, now_s: float, review: bool) -> Iterator[Assignment]:
        """Each engine's first ones, while there is an engine for them; without a `review` only of engines not overloaded."""
        for engine_id in self._held.engines():
            engine = self.cluster.engines.get(engine_id)
            if engine is None or (engine.overloaded and not review):
                continue
            while (request := self._held.first(engine_id)) is not None:
                if missing_role(request, self.cluster) is not None:
                    self._held.drop_first(engine_id)
                    self._back_to_queue(request)
                    continue
                choice = self._choose(request, now_s)
                if choice is None or choice.engine.overloaded:
                    break
                self._held.drop_first(engine_id)
                decode = self._choose_decode(request)
                if decode is None:
                    self._roomless.add(request, now_s)
                else:
                    yield self._assign(request, choice, decode, now_s)

    def _rebalance(self, now_s: float) -> None:
        waiting = [
            (request, self.cluster.engines[engine_id])
            for engine_id in self._held.engines()
            for request in self._held.first_few(engine_id, REBALANCED_PER_ENGINE)
        ]
        for move in self.policy.rebalance(waiting, now_s):
            self.n_rebalanced += self._held.move(move.request, move.source.engine_id, move.target.engine_id)

    def _place_roomless(self, request: Request, now_s: float) -> Assignment | Lacking:
        """One that waits for room."""
        if missing_role(request, self.cluster) is not None:
            self._back_to_queue(request)
            return Lacking.PREFILL
        if self._most_room is None:
            self._most_room = self._decode.most_room_tokens(self.cluster.decode)
        if request.prompt_tokens + request.output_tokens > self._most_room:
            return Lacking.ROOM
        choice = self._choose(request, now_s)
        if choice is None or (self.policy.holds and choice.engine.overloaded):
            return Lacking.PREFILL
        decode = self._choose_decode(request)
        return Lacking.ROOM if decode is None else self._assign(request, choice, decode, now_s)

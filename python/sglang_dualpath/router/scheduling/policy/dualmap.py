"""DualMap: two candidate engines a prefix; affinity first, balance when affinity would miss the SLO (ICLR 2026).

The request only ever goes to one of its pair. Default: the candidate that holds the longer part of its prefix, until that one's
queue would push the time to the first token over the SLO (a token threshold: what the engine computes within it); then the less
loaded one. Equal parts: the less loaded one. A request given to an overloaded engine is held for it, and moved to its other
candidate when that is idle and would answer sooner (`rebalance`): the largest gain first, until the rest is expected to meet the
SLO; one batch a round, no request twice.
Knobs: ttft_slo_s, virtual_nodes, popularity_*, split_factor, shrink_factor.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.estimate import compute_rate_per_s, expected_ttft_s, waiting_s
from sglang_dualpath.router.scheduling.policy.candidate_pair import CandidatePairs, Candidates
from sglang_dualpath.router.scheduling.policy.policy import Choice, Move
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request


class DualMap:
    """See the module."""

    holds = True
    uses_hits = True

    def __init__(self, settings: PolicySettings) -> None:
        self._slo_s = settings.ttft_slo_s
        self._pairs = CandidatePairs(settings)
        self._moved: dict[str, Engine] = {}

    def joined(self, engine: Engine) -> None:
        """See `Policy.joined`."""
        self._pairs.joined(engine)

    def left(self, engine: Engine) -> None:
        """See `Policy.left`."""
        self._pairs.left(engine)
        self._moved = {name: target for name, target in self._moved.items() if target is not engine}

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        moved = self._moved.get(request.request_id)
        if moved is not None and moved in engines:
            return Choice(moved, "rebalanced")
        return slo_aware(request, self._pairs.of(request, engines), self._slo_s)

    def assigned(self, request: Request, engine: Engine, now_s: float) -> None:
        """See `Policy.assigned`."""
        self._moved.pop(request.request_id, None)
        self._pairs.forget(request)

    def rebalance(self, waiting: Iterable[tuple[Request, Engine]], now_s: float) -> list[Move]:
        """See `Policy.rebalance`."""
        moves: list[Move] = []
        idle = {
            id(engine) for engine in self._pairs.everyone if not engine.overloaded and waiting_s(engine) < self._slo_s
        }
        queued = {id(engine): (engine, [r for r, _ in group]) for engine, group in groupby(waiting, key=lambda w: w[1])}
        # Of requests that were withdrawn no one tells: what is remembered of them goes with the next round.
        held = {request.request_id for _, requests in queued.values() for request in requests}
        self._moved = {name: target for name, target in self._moved.items() if name in held}
        idle -= set(queued)
        for source, requests in queued.values():
            if not idle:
                break
            made = self._relieve(source, requests, idle)
            for move in made:
                self._moved[move.request.request_id] = move.target
                idle.discard(id(move.target))
            moves += made
        return moves

    def _relieve(self, source: Engine, requests: list[Request], idle: set[int]) -> list[Move]:
        """Moves away from one engine, by benefit, until its queue is expected to meet the SLO."""
        rate = compute_rate_per_s(source)
        begins_s = waiting_s(source)
        offers: list[tuple[float, int, Move]] = []
        costs_s: list[float] = []
        for place, request in enumerate(requests):
            cost_s = (request.prompt_tokens - source.known_tokens(request)) / rate
            costs_s.append(cost_s)
            begins_s += cost_s
            other = self._idle_other(request, source, idle)
            if other is not None and request.request_id not in self._moved:
                benefit_s = begins_s - expected_ttft_s(other, request)
                if benefit_s > 0:
                    offers.append((benefit_s, place, Move(request, source, other)))
        offers.sort(key=lambda offer: (-offer[0], offer[1]))
        moves: list[Move] = []
        taken: set[int] = set()
        for _, place, move in offers:
            if begins_s <= self._slo_s:
                break
            if id(move.target) in taken:
                continue
            taken.add(id(move.target))
            begins_s -= costs_s[place]
            moves.append(move)
        return moves

    def _idle_other(self, request: Request, source: Engine, idle: set[int]) -> Engine | None:
        """Its other candidate, if that has nothing waiting and would meet the SLO."""
        pair = self._pairs.of(request, self._pairs.everyone).engines
        if source not in pair:
            return None
        for engine in pair:
            if engine is not source and id(engine) in idle:
                return engine if expected_ttft_s(engine, request) <= self._slo_s else None
        return None


def slo_aware(request: Request, candidates: Candidates, slo_s: float) -> Choice:
    """The engine of a pair by affinity, or by load once affinity would miss the SLO."""
    pair = candidates.engines
    if len(pair) < 2:
        return Choice(pair[0], "only_candidate")
    one, other = pair
    hits = candidates.hit_tokens(one, request), candidates.hit_tokens(other, request)
    calmer = min(pair, key=lambda engine: (engine.pending_new_tokens, engine.tok, engine.seq, engine.engine_id))
    if hits[0] == hits[1]:
        return Choice(calmer, "equal_hits")
    closer = one if hits[0] > hits[1] else other
    if expected_ttft_s(closer, request) <= slo_s:
        return Choice(closer, "longer_hit")
    return Choice(calmer, "longer_hit" if calmer is closer else "slo_switch")

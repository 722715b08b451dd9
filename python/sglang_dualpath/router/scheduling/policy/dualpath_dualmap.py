"""DualMap's pair as the feasible set, DualPath's classes inside it.

1. While one of the pair is not overloaded (C1), the request goes to one of the pair: affinity is kept.
2. Of the pair, C2 (short read queue) comes before C3; two of one class are told apart as in DualMap: the longer hit, until the
   SLO speaks against it. No request ever goes to an engine in C1.
3. Both overloaded: the request is held for its pair, and others overtake it; moved as in DualMap.
4. Held longer than the SLO: it goes to the whole group by Algorithm 1. So it waits longer only while every engine is in C1.
Knobs: those of DualMap; alpha and beta as engines report them.
"""

from collections.abc import Sequence
from dataclasses import replace

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.dualmap import DualMap, slo_aware
from sglang_dualpath.router.scheduling.policy.dualpath import best_of_classes
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class DualPathDualMap(DualMap):
    """See the module."""

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        moved = self._moved.get(request.request_id)
        if moved is not None and moved in engines and not moved.overloaded:
            return Choice(moved, "rebalanced")
        pair = self._pairs.of(request, engines)
        feasible = [engine for engine in pair.engines if not engine.overloaded]
        if feasible:
            short = [engine for engine in feasible if has_short_queue(engine)]
            return slo_aware(request, replace(pair, engines=short or feasible), self._slo_s)
        if now_s - request.arrived_s > self._slo_s:
            anyone = best_of_classes(engines)
            if anyone is not None:
                return Choice(anyone.engine, "whole_group")
        return slo_aware(request, pair, self._slo_s)


def has_short_queue(engine: Engine) -> bool:
    """Whether it is in C2 rather than C3 (paper, Algorithm 1), once it is not in C1."""
    return engine.alpha_tokens is None or engine.node.read_q_tokens <= engine.alpha_tokens

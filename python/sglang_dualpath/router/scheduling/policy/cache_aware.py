"""Cache-aware, with thresholds, as users of sglang_router know it.

While the load is even, the engine that holds the longest part of the prompt gets it, if that part is large enough; otherwise the
one that holds least. Once the most loaded engine has `balance_abs_threshold` requests and `balance_rel_threshold` times more than
the least loaded one, the least loaded one gets it.
Knobs: cache_threshold, balance_abs_threshold, balance_rel_threshold.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request


class CacheAware(FreeChoice):
    """See the module."""

    uses_hits = True

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        least = min(engines, key=lambda engine: (engine.seq, engine.tok, engine.engine_id))
        most_seq = max(engine.seq for engine in engines)
        uneven = most_seq - least.seq > self._settings.balance_abs_threshold
        if uneven and most_seq > self._settings.balance_rel_threshold * least.seq:
            return Choice(least, "balance")
        hits = [engine.hit_tokens(request) for engine in engines]
        longest = max(hits)
        if longest > self._settings.cache_threshold * request.prompt_tokens:
            return Choice(engines[hits.index(longest)], "longest_match")
        emptiest = min(engines, key=lambda engine: (engine.cached.n_marks, engine.seq, engine.engine_id))
        return Choice(emptiest, "least_cached")

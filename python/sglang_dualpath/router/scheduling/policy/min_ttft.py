"""Least expected time to the first token, cached prefix included (Mooncake's cache-aware scheduling; a DualMap baseline).

Knobs: none; the estimate is `scheduling.estimate`.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.estimate import expected_ttft_s
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class MinTtft(FreeChoice):
    """See the module."""

    uses_hits = True

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        best = min(engines, key=lambda engine: (expected_ttft_s(engine, request), engine.seq, engine.engine_id))
        return Choice(best, "least_ttft")

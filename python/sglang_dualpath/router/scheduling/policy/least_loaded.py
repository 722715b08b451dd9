"""Least loaded: the prefill engine with the fewest unfinished tokens, then requests.

Knobs: none. A baseline of the DualMap paper.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class LeastLoaded(FreeChoice):
    """See the module."""

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        return Choice(min(engines, key=lambda engine: (engine.tok, engine.seq, engine.engine_id)), "least_tok")

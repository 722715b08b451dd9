"""Preble's E2: exploit an engine's cache where it saves more than is left to compute, else explore by load.

If the longest cached prefix is longer than the rest of the prompt, the engines that hold it compete by load; otherwise all
engines compete by what the request would cost there: the work that waits, and its own uncached tokens.
Knobs: none. Source: Srivatsa et al., 2024.
Evictions and the rebalancing of whole subtrees are left out; a baseline of the DualMap paper.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.estimate import expected_ttft_s
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class Preble(FreeChoice):
    """See the module."""

    uses_hits = True

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        hits = [engine.hit_tokens(request) for engine in engines]
        longest = max(hits)
        if longest > request.prompt_tokens - longest:
            holders = [engine for engine, hit in zip(engines, hits, strict=True) if hit == longest]
            return Choice(min(holders, key=lambda engine: (engine.tok, engine.seq, engine.engine_id)), "exploit")
        best = min(engines, key=lambda engine: (expected_ttft_s(engine, request), engine.tok, engine.engine_id))
        return Choice(best, "explore")

"""Power of two: two prefill engines by chance, the one with fewer unfinished tokens gets the request.

Knobs: the seed. The highest load stays within log log n / log 2 + O(1) of the average (Azar et al., Balanced Allocations).
"""

import random
from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class PowerOfTwo(FreeChoice):
    """See the module."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        pair = self._random.sample(engines, 2) if len(engines) > 1 else engines
        return Choice(min(pair, key=lambda engine: (engine.tok, engine.seq)), "less_of_two")

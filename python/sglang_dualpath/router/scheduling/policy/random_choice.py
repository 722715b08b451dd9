"""Random: any prefill engine, all alike.

Knobs: the seed.
"""

import random
from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class RandomChoice(FreeChoice):
    """See the module."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        return Choice(self._random.choice(engines), "chance")

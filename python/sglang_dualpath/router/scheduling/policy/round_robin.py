"""Round robin: each prefill engine in turn, whatever it has to do.

Knobs: none. The DualPath paper's baseline for the balance of storage NICs (Max/Avg 1.53).
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class RoundRobin(FreeChoice):
    """See the module."""

    def __init__(self) -> None:
        self._turns = 0

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        self._turns += 1
        return Choice(engines[(self._turns - 1) % len(engines)], "turn")

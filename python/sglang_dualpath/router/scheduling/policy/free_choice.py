"""What policies without state have in common: nothing to keep, nothing to hold back, nothing to move."""

from collections.abc import Iterable

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.policy import Move
from sglang_dualpath.router.scheduling.request import Request


class FreeChoice:
    """A base for policies that only implement `choose`."""

    holds = False
    uses_hits = False

    def joined(self, engine: Engine) -> None:
        """See `Policy.joined`."""

    def left(self, engine: Engine) -> None:
        """See `Policy.left`."""

    def assigned(self, request: Request, engine: Engine, now_s: float) -> None:
        """See `Policy.assigned`."""

    def rebalance(self, waiting: Iterable[tuple[Request, Engine]], now_s: float) -> list[Move]:
        """See `Policy.rebalance`."""
        return []

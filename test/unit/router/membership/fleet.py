"""Servers over a scheduler, without a router around them."""

from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.membership.servers import Servers
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.policy.dualpath import DualPath
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.scheduler import Scheduler


class Fleet:
    """Servers at a time that the test sets; the lost ones are kept."""

    def __init__(self, breaker: BreakerSettings = BreakerSettings()) -> None:  # noqa: B008 - frozen
        self.now_s = 100.0
        self.lost: list[str] = []
        self.scheduler = Scheduler(Cluster(), DualPath(), DecodeChoice(), ReadSide())
        self.servers = Servers(self.scheduler, breaker, self.lost.append, clock=lambda: self.now_s)

    @property
    def offered(self) -> list[str]:
        """The engines that may be chosen."""
        cluster = self.scheduler.cluster
        return [engine.engine_id for engine in (*cluster.prefill, *cluster.decode)]

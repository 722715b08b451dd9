"""One engine server as the router knows it."""

from dataclasses import dataclass, field
from typing import Literal

import xxhash

from sglang_dualpath.router.membership.breaker import Breaker
from sglang_dualpath.router.scheduling.engine import Role
from sglang_dualpath.telemetry.report import EngineReport

Source = Literal["flag", "admin", "report"]


def worker_id(url: str) -> str:
    """A server's name in `/workers/{id}`: a digest of its URL, so that it is the same for every router."""
    return xxhash.xxh3_64_hexdigest(url.encode())


@dataclass(slots=True, eq=False)
class Server:
    """A prefill or decode engine (one URL) with its data-parallel ranks."""

    url: str
    role: Role
    source: Source
    breaker: Breaker
    bootstrap_port: int | None = None
    healthy: bool = False
    health_failures: int = 0
    """In a row."""
    health_successes: int = 0
    draining: bool = False
    reported_at_s: float | None = None
    reports: dict[int, EngineReport] = field(default_factory=dict)
    """The last of each data-parallel rank."""
    in_flight: int = 0
    misreported: bool = False
    """Whether it has been said that it reports in another role."""

    @property
    def id(self) -> str:
        """Its name in `/workers/{id}`."""
        return worker_id(self.url)

    def available(self, now_s: float) -> bool:
        """Whether it may get a request."""
        return self.healthy and not self.draining and self.breaker.allows(now_s)

    def describe(self, now_s: float) -> dict[str, object]:
        """For `/workers`."""
        return {
            "id": self.id,
            "url": self.url,
            "role": self.role,
            "source": self.source,
            "bootstrap_port": self.bootstrap_port,
            "healthy": self.healthy,
            "draining": self.draining,
            "circuit": self.breaker.state(now_s),
            "in_flight": self.in_flight,
            "dp_ranks": sorted(self.reports),
            "reports": self.reported_at_s is not None,
            "report_age_s": None if self.reported_at_s is None else round(now_s - self.reported_at_s, 3),
        }

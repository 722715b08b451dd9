"""All servers the router knows, and the scheduler's view of them kept in step."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sglang_dualpath.router.membership.breaker import Breaker, BreakerSettings
from sglang_dualpath.router.membership.server import Server, Source
from sglang_dualpath.router.scheduling.engine import Role
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.scheduler import Scheduler
from sglang_dualpath.telemetry.report import EngineReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LimitOverrides:
    """Alpha and beta in place of what engines report; None leaves theirs."""

    alpha_tokens: int | None = None
    beta_tokens: int | None = None


AS_REPORTED = LimitOverrides()


class RoleMismatch(ValueError):
    """A server is named in one role and known in the other."""


def engine_id(url: str, rank: int | None) -> str:
    """What the scheduler calls one data-parallel rank; a server with one rank goes by its URL."""
    return url if rank is None else f"{url}@{rank}"


class Servers:
    """By URL. Single-threaded: lives on the core's event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        breaker: BreakerSettings,
        on_lost: Callable[[str], None],
        limits: LimitOverrides = AS_REPORTED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._breaker = breaker
        self._on_lost = on_lost
        self._limits = limits
        self._clock = clock
        self._servers: dict[str, Server] = {}

    def add(self, url: str, role: Role, source: Source, bootstrap_port: int | None = None) -> Server:
        """Make a server known; keeps what is known of it already. Raises RoleMismatch."""
        url = url.rstrip("/")
        server = self._servers.get(url)
        if server is None:
            server = Server(url, role, source, Breaker(self._breaker), bootstrap_port)
            self._servers[url] = server
            self._scheduler.cluster.join(engine_id(url, None), role, url, url)
            self._apply(server)
        elif server.role != role:
            raise RoleMismatch(f"{url} is a {server.role} engine already")
        if source == "admin":
            server.draining = False
            self._apply(server)
        if server.bootstrap_port is None:
            server.bootstrap_port = bootstrap_port
        return server

    def get(self, url: str) -> Server | None:
        """The server with this URL."""
        return self._servers.get(url)

    def by_id(self, server_id: str) -> Server | None:
        """The server of `/workers/{id}`; its URL is taken too."""
        return next((s for s in self._servers.values() if server_id in (s.id, s.url)), None)

    def all(self, role: Role | None = None) -> list[Server]:
        """All servers, or those of a role."""
        return [server for server in self._servers.values() if role is None or server.role == role]

    def remove(self, server: Server) -> None:
        """Forget a server; what it still runs ends as its clients will see."""
        self._servers.pop(server.url, None)
        for rank in self._ranks(server):
            self._scheduler.leave(engine_id(server.url, rank))

    def drain(self, server: Server) -> None:
        """Give a server nothing new."""
        server.draining = True
        self._apply(server)

    def take_report(self, report: EngineReport) -> None:
        """Note an engine's report; a server not known yet joins with it. One in another role than it is known in is logged
        and dropped."""
        now_s = self._clock()
        url = report.url.rstrip("/")
        server = self._servers.get(url)
        if server is None:
            logger.info("%s engine %s joined by its report", report.role, url)
            server = self.add(url, report.role, "report", report.bootstrap_port)
        if server.role != report.role:
            if not server.misreported:
                logger.error("%s reports as a %s engine but was added as a %s engine", url, report.role, server.role)
            server.misreported = True
            return
        if server.bootstrap_port is None:
            server.bootstrap_port = report.bootstrap_port
        server.reported_at_s = now_s
        server.reports[report.dp_rank] = report
        if not server.healthy and server.health_failures == 0:
            # It has never failed a probe, and it speaks.
            self.set_health(server, True)
        rank = self._rank_of(server, report.dp_rank)
        self._scheduler.cluster.report(self._limited(_load(report, engine_id(url, rank))), now_s)

    def set_health(self, server: Server, healthy: bool) -> None:
        """Note that a server answers, or does not."""
        if server.healthy != healthy:
            server.healthy = healthy
            log = logger.info if healthy else logger.warning
            log("%s engine %s is %s", server.role, server.url, "healthy" if healthy else "not healthy")
            if not healthy:
                self._on_lost(server.url)
        self._apply(server)

    def check_heartbeats(self, timeout_s: float) -> None:
        """Take out servers that used to report and have fallen silent; forget those that joined by their reports."""
        now_s = self._clock()
        for server in self.all():
            if server.reported_at_s is None or now_s - server.reported_at_s <= timeout_s:
                continue
            if server.healthy:
                logger.warning("%s engine %s has not reported for %.0f s", server.role, server.url, timeout_s)
                server.health_failures += 1
                self.set_health(server, False)
            elif server.source == "report":
                logger.info("%s engine %s is forgotten", server.role, server.url)
                self.remove(server)

    def refresh(self) -> None:
        """Circuits may have closed again by themselves."""
        for server in self._servers.values():
            self._apply(server)

    def begin(self, url: str) -> None:
        """A request goes to a server."""
        server = self._servers.get(url)
        if server is not None:
            server.in_flight += 1
            server.breaker.begin(self._clock())
            self._apply(server)

    def end(self, url: str, failed: bool | None) -> None:
        """It has ended there; `failed` as in `Breaker.end`."""
        server = self._servers.get(url)
        if server is None:
            return
        server.in_flight = max(0, server.in_flight - 1)
        before = server.breaker.n_opened
        server.breaker.end(self._clock(), failed)
        if server.breaker.n_opened > before:
            logger.warning("%s engine %s: circuit open after too many failures", server.role, server.url)
        self._apply(server)

    def _limited(self, load: LoadReport) -> LoadReport:
        alpha, beta = self._limits.alpha_tokens, self._limits.beta_tokens
        return replace(
            load,
            alpha_tokens=load.alpha_tokens if alpha is None else alpha,
            beta_tokens=load.beta_tokens if beta is None else beta,
        )

    def _apply(self, server: Server) -> None:
        """Tell the scheduler whether the server's engines may be chosen."""
        available = server.available(self._clock())
        for rank in self._ranks(server):
            engine = self._scheduler.cluster.engines.get(engine_id(server.url, rank))
            if engine is not None:
                self._scheduler.set_available(engine, available)

    @staticmethod
    def _ranks(server: Server) -> list[int | None]:
        return [None] if len(server.reports) <= 1 else list(server.reports)

    def _rank_of(self, server: Server, dp_rank: int) -> int | None:
        """The scheduler's name for the rank; the first report of a second rank splits the server into its ranks."""
        cluster = self._scheduler.cluster
        if len(server.reports) <= 1:
            return None
        self._scheduler.leave(engine_id(server.url, None))
        for rank in server.reports:
            if engine_id(server.url, rank) not in cluster.engines:
                cluster.join(engine_id(server.url, rank), server.role, server.url, server.url)
        self._apply(server)
        return dp_rank


def _load(report: EngineReport, name: str) -> LoadReport:
    return LoadReport(
        engine_id=name,
        node_id=report.node_id,
        dual=report.kv_path == "dual",
        seq=report.seq,
        tok=report.tok,
        read_q_tokens=report.read_q_tokens,
        free_kv_tokens=report.free_kv_tokens,
        free_buffer_tokens=report.free_buffer_tokens,
        alpha_tokens=report.alpha_tokens,
        beta_tokens=report.beta_tokens,
        read_tokens_per_s=report.read_tokens_per_s,
        compute_tokens_per_s=report.compute_tokens_per_s,
    )

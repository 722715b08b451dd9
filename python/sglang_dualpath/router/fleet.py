"""The engines the router knows: their health, their reports, and what it has assigned to them itself."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad
from sglang_dualpath.telemetry.report import EngineReport

logger = logging.getLogger(__name__)

REPORT_FRESH_S = 5.0
"""A report older than this counts as none."""

REPORT_LAG_S = 0.15
"""A read assigned up to this long before a report came may not stand in its queue yet."""

Role = Literal["prefill", "decode"]


@dataclass(slots=True)
class AssignedWork:
    """One request on one engine; `reads_tokens` is what it puts into the read queue of the engine's node."""

    tokens: int
    reads_tokens: int
    assigned_at_s: float


@dataclass(frozen=True, slots=True)
class NotedReport:
    """A report, and when it came."""

    report: EngineReport
    at_s: float

    def fresh(self, now_s: float) -> bool:
        """Whether it still counts."""
        return now_s - self.at_s <= REPORT_FRESH_S


@dataclass(slots=True)
class Engine:
    """One engine (server) and its state."""

    url: str
    role: Role
    bootstrap_port: int | None = None
    healthy: bool = True
    reports: dict[int, NotedReport] = field(default_factory=dict)
    """The last of each data-parallel rank."""
    misreported: bool = False
    """Whether it has been said that it reports in another role."""
    work: dict[int, AssignedWork] = field(default_factory=dict)

    def load(self, now_s: float) -> EngineLoad:
        """What a policy sees: the report and the router's own assignments, whichever knows more.

        seq and tok are the larger of both; the read queue is the reported one plus the reads assigned since (all of the
        router's own where there is no fresh report). The ranks of an engine are one: loads and beta add up, the read queue
        is that of their node.
        """
        own_tokens = sum(work.tokens for work in self.work.values())
        noted = [noted for noted in self.reports.values() if noted.fresh(now_s)]
        if not noted:
            reads = sum(work.reads_tokens for work in self.work.values())
            return EngineLoad(self.url, self.role, len(self.work), own_tokens, reads, dual=False)
        since = min(one.at_s for one in noted) - REPORT_LAG_S
        unreported = sum(work.reads_tokens for work in self.work.values() if work.assigned_at_s > since)
        reports = [one.report for one in noted]
        return EngineLoad(
            url=self.url,
            role=self.role,
            seq=max(sum(report.seq for report in reports), len(self.work)),
            tok=max(sum(report.tok for report in reports), own_tokens),
            read_q_tokens=max(report.read_q_tokens for report in reports) + unreported,
            dual=all(report.kv_path == "dual" for report in reports),
            alpha_tokens=min(report.alpha_tokens for report in reports),
            beta_tokens=sum(report.beta_tokens for report in reports),
            free_buffer_tokens=max(report.free_buffer_tokens for report in reports),
        )

    def note(self, report: EngineReport, now_s: float) -> None:
        """Keep a rank's report, and forget those of ranks that are silent."""
        self.reports = {rank: noted for rank, noted in self.reports.items() if noted.fresh(now_s)}
        self.reports[report.dp_rank] = NotedReport(report, now_s)


class Fleet:
    """All engines, by URL. Single-threaded: lives on the router's event loop."""

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engines: dict[str, Engine] = {}
        self._on_change = on_change
        self._clock = clock
        self._next_work = 0

    def add(self, url: str, role: Role, bootstrap_port: int | None = None) -> Engine:
        """Make an engine known; keeps what is known of it already."""
        url = url.rstrip("/")
        engine = self._engines.setdefault(url, Engine(url, role, bootstrap_port))
        self._on_change()
        return engine

    def engine(self, url: str) -> Engine:
        """The engine with this URL. Raises KeyError."""
        return self._engines[url]

    def engines(self, role: Role | None = None) -> list[Engine]:
        """All engines, or those of a role."""
        return [engine for engine in self._engines.values() if role is None or engine.role == role]

    def take_report(self, report: EngineReport) -> None:
        """Note an engine's report; an engine not known yet joins with it. One in another role than it was added in is logged
        and dropped."""
        url = report.url.rstrip("/")
        if url not in self._engines:
            logger.info("%s engine %s joined by its report", report.role, url)
            self.add(url, report.role, report.bootstrap_port)
        engine = self._engines[url]
        if engine.role != report.role:
            if not engine.misreported:
                logger.error("%s reports as a %s engine but was added as a %s engine", url, report.role, engine.role)
            engine.misreported = True
            return
        engine.note(report, self._clock())
        if engine.bootstrap_port is None:
            engine.bootstrap_port = report.bootstrap_port
        self._on_change()

    def set_health(self, url: str, healthy: bool) -> None:
        """Note that an engine answers, or does not."""
        engine = self._engines[url]
        if engine.healthy != healthy:
            logger.warning("%s engine %s is %s", engine.role, url, "healthy again" if healthy else "not healthy")
            engine.healthy = healthy
        # Also without a change: reports may have aged, and nothing else tells of that.
        self._on_change()

    def loads(self, role: Role, without: frozenset[str] = frozenset()) -> list[EngineLoad]:
        """The healthy engines of a role, as a policy sees them."""
        now = self._clock()
        return [e.load(now) for e in self.engines(role) if e.healthy and e.url not in without]

    def begin(self, assignment: Assignment, tokens: int) -> int:
        """Count a request on both its engines; returns a ticket for `end`."""
        ticket = self._next_work
        self._next_work += 1
        now = self._clock()
        for url, side in ((assignment.prefill_url, "prefill"), (assignment.decode_url, "decode")):
            reads = tokens if assignment.read_side == side else 0
            self._engines[url].work[ticket] = AssignedWork(tokens, reads, now)
        return ticket

    def end_prefill(self, assignment: Assignment, ticket: int) -> None:
        """The prefill engine is done with a request; the decode engine goes on."""
        self._engines[assignment.prefill_url].work.pop(ticket, None)
        self._on_change()

    def end(self, assignment: Assignment, ticket: int) -> None:
        """A request is over."""
        for url in (assignment.prefill_url, assignment.decode_url):
            self._engines[url].work.pop(ticket, None)
        self._on_change()

"""The scheduling core in the process that holds it: places requests, follows them to their end."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sglang_dualpath.router.core.metrics import CoreMetrics
from sglang_dualpath.router.front.placement import Ended, Finished, NotPlaced, Placement
from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.membership.servers import AS_REPORTED, LimitOverrides, Servers
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.scheduler import Scheduler
from sglang_dualpath.telemetry.report import EngineReport

DEFAULT_BOOTSTRAP_PORT = 8998
"""Upstream's, for a prefill engine that neither its flag nor a report names one of."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How many requests may wait, and how long."""

    size: int
    timeout_s: float


@dataclass(slots=True)
class _Waiting:
    request: Request
    future: "asyncio.Future[Placement]"


class SchedulingCore:
    """See `front.placement.Core`. Single-threaded: lives on one event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        breaker: BreakerSettings,
        queue: QueueSettings,
        metrics: CoreMetrics,
        limits: LimitOverrides = AS_REPORTED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.servers = Servers(scheduler, breaker, self._lost, limits, clock)
        self.metrics = metrics
        self._queue = queue
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._placed: dict[str, Placement] = {}
        self._lost_callbacks: list[Callable[[str], None]] = []
        self._running = False

    # ---- the front's side

    async def place(self, request: Request) -> Placement:
        """See `Core.place`."""
        # A ticket of its own: clients may give one id to many requests, and a retry comes while the first try still ends.
        ticket = secrets.token_hex(8)
        waiting = _Waiting(replace(request, request_id=ticket), asyncio.get_running_loop().create_future())
        self._waiting[ticket] = waiting
        self.scheduler.submit(waiting.request)
        self.run()
        if not waiting.future.done() and self.scheduler.n_waiting > self._queue.size:
            self._forget(ticket)
            raise NotPlaced("queue_full", "too many requests are waiting; raise --queue-size or add engines")
        try:
            async with asyncio.timeout(self._queue.timeout_s):
                return await waiting.future
        except TimeoutError:
            self._forget(ticket)
            waited_s = self._queue.timeout_s
            raise NotPlaced("queue_timeout", f"no engine had room within --queue-timeout-secs {waited_s:g}") from None
        except asyncio.CancelledError:
            self._forget(ticket)
            if ticket in self._placed:
                self.end(Ended(ticket=ticket, outcome="client_gone"))
            raise

    def prefill_done(self, ticket: str) -> None:
        """See `Core.prefill_done`."""
        if self.scheduler.end_prefill(ticket):
            self.run()

    def end(self, ended: Ended) -> None:
        """See `Core.end`."""
        placement = self._placed.pop(ended.ticket, None)
        if placement is None:
            return
        self.scheduler.end(ended.ticket)
        for url in (placement.prefill_url, placement.decode_url):
            failed = None if ended.outcome in ("client_gone", "bad_request", "timeout") else url == ended.failed_url
            self.servers.end(url, failed)
        if ended.outcome == "unreachable" and ended.failed_url is not None:
            server = self.servers.get(ended.failed_url)
            if server is not None:
                server.health_failures += 1
                self.servers.set_health(server, False)
        if ended.ttft_s is not None and ended.outcome == "ok":
            self.metrics.first_byte(ended.ttft_s)
        self.run()

    def note(self, finished: Finished) -> None:
        """See `Core.note`."""
        self.metrics.requests.labels(finished.outcome).inc()
        self.metrics.retries.inc(finished.retries)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """See `Core.on_lost`."""
        self._lost_callbacks.append(callback)

    # ---- the engines' side

    def take_report(self, report: EngineReport) -> None:
        """An engine reports; a report is also a fetch (paper, scheduling)."""
        self.servers.take_report(report)
        self.run()

    def run(self) -> None:
        """Decide what can be decided now."""
        if self._running:
            return
        self._running = True
        try:
            for made in self.scheduler.run(self._clock()):
                if isinstance(made, Assignment):
                    self._placed_at(made)
                else:
                    self._fail(made.request.request_id, made.role)
        finally:
            self._running = False
        self.metrics.waiting.set(self.scheduler.n_waiting)
        self.metrics.in_flight.set(len(self._placed))
        self.metrics.rebalanced.set(self.scheduler.n_rebalanced)

    @property
    def n_in_flight(self) -> int:
        """Requests placed and not ended."""
        return len(self._placed)

    def _placed_at(self, made: Assignment) -> None:
        waiting = self._waiting.pop(made.request_id, None)
        if waiting is None or waiting.future.done():
            self.scheduler.end(made.request_id)
            return
        engines = self.scheduler.cluster.engines
        prefill, decode = engines[made.prefill_id], engines[made.decode_id]
        server = self.servers.get(prefill.group)
        placement = Placement(
            ticket=made.request_id,
            prefill_url=prefill.group,
            bootstrap_port=(server.bootstrap_port if server else None) or DEFAULT_BOOTSTRAP_PORT,
            prefill_rank=_rank(made.prefill_id),
            decode_url=decode.group,
            decode_rank=_rank(made.decode_id),
            decode_read_share=made.decode_read_share,
            expected_hit_tokens=made.expected_hit_tokens,
            reason=made.reason,
            waited_s=self._clock() - waiting.request.arrived_s,
        )
        self._placed[placement.ticket] = placement
        for url in (placement.prefill_url, placement.decode_url):
            self.servers.begin(url)
        self.metrics.placed(placement, waiting.request.prompt_tokens)
        waiting.future.set_result(placement)

    def _fail(self, ticket: str, role: str) -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_exception(NotPlaced("no_engine", f"no healthy {role} engine; see /workers"))

    def _forget(self, ticket: str) -> None:
        self._waiting.pop(ticket, None)
        self.scheduler.withdraw(ticket)

    def _lost(self, url: str) -> None:
        for callback in self._lost_callbacks:
            callback(url)


def _rank(engine_id: str) -> int | None:
    """The rank in `URL@RANK`; None where a server goes by its URL alone."""
    _, at, rank = engine_id.rpartition("@")
    return int(rank) if at and rank.isdigit() else None

"""A trace through the real scheduler, over engines that only count: each works off its tokens at a constant rate.

No queueing inside engines, no batching: what is shown is the mix of decisions, not a forecast of latencies.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglang_dualpath.router.scheduling.engine import Engine, Role
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CountedFleet:
    """The engines of a dry run."""

    n_prefill: int = 4
    n_decode: int = 4
    compute_tokens_per_s: float = 6250.0
    """New prompt tokens a prefill engine computes a second."""
    read_tokens_per_s: float = 200_000.0
    """Tokens of KV a node reads from storage a second."""
    decode_s_per_token: float = 0.03
    report_interval_s: float = 0.5


@dataclass(slots=True)
class DecisionMix:
    """What has been decided."""

    n_requests: int = 0
    n_placed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    prefill: Counter[str] = field(default_factory=Counter)
    decode: Counter[str] = field(default_factory=Counter)
    sides: Counter[str] = field(default_factory=Counter)
    node_read_tokens: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    expected_hit_tokens: int = 0
    waited_s: list[float] = field(default_factory=list)
    rebalanced: int = 0
    lasted_s: float = 0.0


class DryRun:
    """One run; times are the trace's."""

    def __init__(
        self, scheduler: Scheduler, fleet: CountedFleet, on_progress: Callable[[], object] = lambda: None
    ) -> None:
        self._scheduler = scheduler
        self._fleet = fleet
        self._on_progress = on_progress
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = itertools.count()
        self._busy_until_s: dict[str, float] = {}
        self._requests: dict[str, Request] = {}
        self.mix = DecisionMix()
        roles: tuple[tuple[Role, int], ...] = (("prefill", fleet.n_prefill), ("decode", fleet.n_decode))
        for role, count in roles:
            for index in range(count):
                name = f"{role}-{index}"
                engine = scheduler.cluster.join(name, role, name, f"node of {name}")
                self._report(engine, 0.0)
                scheduler.set_available(engine, True)

    def run(self, requests: Sequence[Request]) -> DecisionMix:
        """All of a trace's requests, until the last has ended."""
        for request in requests:
            self._at(request.arrived_s, lambda now_s, request=request: self._arrive(request, now_s))  # type: ignore[misc]
        if requests:
            self._at(requests[0].arrived_s, self._report_all)
        while self._events:
            now_s, _, act = heapq.heappop(self._events)
            act(now_s)
            for made in self._scheduler.run(now_s):
                if isinstance(made, Assignment):
                    self._place(made, now_s)
            self.mix.lasted_s = now_s
        self.mix.rebalanced = self._scheduler.n_rebalanced
        return self.mix

    def _at(self, time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._sequence), act))

    def _arrive(self, request: Request, now_s: float) -> None:
        self.mix.n_requests += 1
        self._requests[request.request_id] = request
        self._scheduler.submit(request)
        self._on_progress()

    def _place(self, made: Assignment, now_s: float) -> None:
        request = self._requests[made.request_id]
        self._count(made, request, now_s)
        work = self._scheduler.cluster.work[made.request_id]
        begins_s = max(now_s, self._busy_until_s.get(made.prefill_id, 0.0))
        reads_s = max(work.prefill_reads_tokens, work.decode_reads_tokens) / self._fleet.read_tokens_per_s
        prefilled_s = max(begins_s + work.new_tokens / self._fleet.compute_tokens_per_s, now_s + reads_s)
        self._busy_until_s[made.prefill_id] = prefilled_s
        ends_s = prefilled_s + request.output_tokens * self._fleet.decode_s_per_token
        self._at(prefilled_s, lambda _: self._end(self._scheduler.end_prefill, made.request_id))
        self._at(ends_s, lambda _: self._end(self._scheduler.end, made.request_id))

    @staticmethod
    def _end(end: Callable[[str], bool], request_id: str) -> None:
        end(request_id)

    def _count(self, made: Assignment, request: Request, now_s: float) -> None:
        mix = self.mix
        mix.n_placed += 1
        mix.reasons[made.reason] += 1
        mix.prefill[made.prefill_id] += 1
        mix.decode[made.decode_id] += 1
        share = made.decode_read_share
        mix.sides["prefill" if share == 0 else "decode" if share == 1 else "split"] += 1
        mix.node_read_tokens[made.prefill_id] += round(request.prompt_tokens * (1 - share))
        mix.node_read_tokens[made.decode_id] += round(request.prompt_tokens * share)
        mix.prompt_tokens += request.prompt_tokens
        mix.expected_hit_tokens += made.expected_hit_tokens
        mix.waited_s.append(now_s - request.arrived_s)

    def _report_all(self, now_s: float) -> None:
        for engine in self._scheduler.cluster.engines.values():
            self._report(engine, now_s)
        if self._events:
            self._at(now_s + self._fleet.report_interval_s, self._report_all)

    def _report(self, engine: Engine, now_s: float) -> None:
        self._scheduler.cluster.report(
            LoadReport(
                engine_id=engine.engine_id,
                node_id=engine.node.node_id,
                dual=True,
                seq=engine.own_seq,
                tok=engine.own_tok,
                read_q_tokens=engine.node.own_reads_tokens,
                free_kv_tokens=2**40,
                free_buffer_tokens=2**40,
                alpha_tokens=3 * self._fleet.read_tokens_per_s,
                beta_tokens=5 * max(self._fleet.compute_tokens_per_s, self._fleet.read_tokens_per_s / 4),
                read_tokens_per_s=self._fleet.read_tokens_per_s,
                compute_tokens_per_s=self._fleet.compute_tokens_per_s,
            ),
            now_s,
        )

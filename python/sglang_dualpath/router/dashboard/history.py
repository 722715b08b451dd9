"""The last two minutes of a router, sample by sample: what the dashboard draws."""

import asyncio
import itertools
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from sglang_dualpath.router.core.core import SchedulingCore
from sglang_dualpath.router.membership.server import Server

SAMPLES = 120
WINDOW_SAMPLES = 60
INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """What one rank has reported in sum."""

    read_bytes: int
    prompt_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One second."""

    at_s: float
    in_flight: int
    waiting: int
    first_bytes_s: tuple[float, ...]
    engines: dict[str, EngineTotals]
    nodes: dict[str, int]


class History:
    """See the module."""

    def __init__(self, core: SchedulingCore) -> None:
        self._core = core
        self._samples: deque[Sample] = deque(maxlen=SAMPLES + 1)
        self._began_s = time.monotonic()

    async def run(self) -> None:
        """Take a sample each second, until cancelled."""
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(INTERVAL_S)

    def sample(self, now_s: float) -> None:
        """Note the present state."""
        taken, self._core.metrics.first_bytes_s = tuple(self._core.metrics.first_bytes_s), []
        engines: dict[str, EngineTotals] = {}
        nodes: dict[str, int] = {}
        for server in self._core.servers.all():
            for rank, report in server.reports.items():
                name = f"{server.role} {server.url} {rank}"
                engines[name] = EngineTotals(report.read_bytes, report.prompt_tokens, report.hit_tokens)
                nodes[report.node_id] = max(nodes.get(report.node_id, 0), report.node_read_bytes)
        self._samples.append(
            Sample(now_s, self._core.n_in_flight, self._core.scheduler.n_waiting, taken, engines, nodes)
        )
        balance = _shares(list(self._samples)[-WINDOW_SAMPLES - 1 :])["nic_max_over_avg"]
        self._core.metrics.nic_max_over_avg.set(1.0 if balance is None else balance)

    def describe(self) -> dict[str, Any]:
        """Totals, series and engines, as the page wants them."""
        samples = list(self._samples)
        pairs = list(itertools.pairwise(samples))
        window = samples[-WINDOW_SAMPLES - 1 :]
        first_bytes = sorted(value for sample in window[1:] for value in sample.first_bytes_s)
        return {
            "uptime_s": round(time.monotonic() - self._began_s, 1),
            "totals": {
                "in_flight": self._core.n_in_flight,
                "waiting": self._core.scheduler.n_waiting,
                "ok": self._outcomes("ok"),
                "failed": self._outcomes(None) - self._outcomes("ok"),
                "retries": _value(self._core.metrics.registry, "dualpath_router_retries_total"),
                "ttft_p50_s": quantile(first_bytes, 0.5),
                "ttft_p90_s": quantile(first_bytes, 0.9),
                **_shares(window),
            },
            "series": {
                "prefill_bytes_per_s": [_rate(a, b, "prefill") for a, b in pairs],
                "decode_bytes_per_s": [_rate(a, b, "decode") for a, b in pairs],
                "ttft_p50_s": [quantile(sorted(sample.first_bytes_s), 0.5) for sample in samples[1:]],
                "ttft_p90_s": [quantile(sorted(sample.first_bytes_s), 0.9) for sample in samples[1:]],
                "in_flight": [sample.in_flight for sample in samples[1:]],
                "waiting": [sample.waiting for sample in samples[1:]],
            },
            "engines": [
                self._engine(server, rank) for server in self._core.servers.all() for rank in server.reports or [0]
            ],
        }

    def _engine(self, server: Server, rank: int) -> dict[str, Any]:
        report = server.reports.get(rank)
        name = server.url if len(server.reports) <= 1 else f"{server.url}@{rank}"
        engine = self._core.scheduler.cluster.engines.get(name)
        window = list(self._samples)[-10:]
        return {
            "engine_id": name,
            "role": server.role,
            "state": _state(server),
            "seq": None if engine is None else engine.seq,
            "tok": None if engine is None else engine.tok,
            "beta_tokens": None if engine is None else engine.beta_tokens,
            "alpha_tokens": None if engine is None else engine.alpha_tokens,
            "read_q_tokens": None if engine is None else engine.node.read_q_tokens,
            "read_bytes_per_s": _engine_rate(window, f"{server.role} {server.url} {rank}"),
            "hit_ratio": report.hit_tokens / report.prompt_tokens if report and report.prompt_tokens else None,
            "free_kv_tokens": None if report is None else report.free_kv_tokens,
            "free_buffer_tokens": None if report is None else report.free_buffer_tokens,
            "fallbacks": 0 if report is None else report.fallbacks,
        }

    def _outcomes(self, outcome: str | None) -> float:
        return sum(
            sample.value
            for metric in self._core.metrics.requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and outcome in (None, sample.labels["outcome"])
        )


def quantile(ordered: list[float], share: float) -> float | None:
    """The value below which `share` of an ordered list lies; None for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _state(server: Server) -> str:
    if server.draining:
        return "draining"
    if not server.healthy:
        return "not healthy"
    circuit = server.breaker.state(time.monotonic())
    return "ready" if circuit == "closed" else f"circuit {circuit.replace('_', '-')}"


def _rate(before: Sample, after: Sample, role: str) -> float | None:
    grown = _grown(before, after)
    bytes_read = sum(totals.read_bytes for name, totals in grown.items() if name.startswith(role))
    return bytes_read / (after.at_s - before.at_s) if after.at_s > before.at_s else None


def _engine_rate(window: list[Sample], name: str) -> float | None:
    if len(window) < 2 or window[-1].at_s <= window[0].at_s:
        return None
    totals = _grown(window[0], window[-1]).get(name)
    return None if totals is None else totals.read_bytes / (window[-1].at_s - window[0].at_s)


def _grown(before: Sample, after: Sample) -> dict[str, EngineTotals]:
    """What each rank has added; one that has started anew counts from zero."""
    grown = {}
    for name, now in after.engines.items():
        was = before.engines.get(name)
        if was is None or was.read_bytes > now.read_bytes or was.prompt_tokens > now.prompt_tokens:
            was = EngineTotals(0, 0, 0) if was is not None else now
        grown[name] = EngineTotals(
            now.read_bytes - was.read_bytes, now.prompt_tokens - was.prompt_tokens, now.hit_tokens - was.hit_tokens
        )
    return grown


def _shares(window: list[Sample]) -> dict[str, float | None]:
    """Hit ratio, the decode side's share of the bytes read, and the busiest node's bytes over the average."""
    prompt = hit = read = decode = 0
    nodes: Counter[str] = Counter()
    for before, after in itertools.pairwise(window):
        for name, grown in _grown(before, after).items():
            prompt += grown.prompt_tokens
            hit += grown.hit_tokens
            read += grown.read_bytes
            decode += grown.read_bytes if name.startswith("decode") else 0
        for node, n_bytes in after.nodes.items():
            nodes[node] += max(0, n_bytes - before.nodes.get(node, n_bytes))
    return {
        "hit_ratio": hit / prompt if prompt else None,
        "decode_side_share": decode / read if read else None,
        "nic_max_over_avg": max(nodes.values()) * len(nodes) / nodes.total() if nodes.total() else None,
    }


def _value(registry: CollectorRegistry, name: str) -> float:
    return registry.get_sample_value(name) or 0.0

"""What the scheduling core has decided, and how long that took."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sglang_dualpath.router.front.placement import Placement
from sglang_dualpath.telemetry.plan import plan_of_share

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class CoreMetrics:
    """Prometheus metrics of one core, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.waiting = Gauge("dualpath_router_waiting", "Requests in the router's queue", registry=registry)
        self._reasons = Counter(
            "dualpath_router_decisions",
            "Placed requests by the rule that chose the engine",
            ["reason"],
            registry=registry,
        )
        self._engines = Counter(
            "dualpath_router_placed", "Placed requests by engine", ["role", "engine"], registry=registry
        )
        self._waited = Histogram(
            "dualpath_router_queue_seconds", "Time in the router's queue", buckets=SECONDS, registry=registry
        )
        self._first_byte = Histogram(
            "dualpath_router_ttft_seconds", "Time to the first byte of an answer", buckets=SECONDS, registry=registry
        )
        self._prompt_tokens = Counter(
            "dualpath_router_prompt_tokens", "Tokens of the prompts placed", registry=registry
        )
        self._expected_hit_tokens = Counter(
            "dualpath_router_expected_hit_tokens",
            "Of those, tokens the chosen engine probably holds in its own memory",
            registry=registry,
        )
        self.rebalanced = Gauge(
            "dualpath_router_rebalanced", "Requests moved to their other candidate while they waited", registry=registry
        )
        self.nic_max_over_avg = Gauge(
            "dualpath_router_nic_max_over_avg",
            "Bytes of the busiest node's storage NIC over the average, last minute",
            registry=registry,
        )
        self.malformed_reports = Counter(
            "dualpath_router_malformed_reports", "Control messages that were dropped", registry=registry
        )
        self.requests = Counter(
            "dualpath_router_requests", "Requests by how they ended", ["outcome"], registry=registry
        )
        self._read_sides = Counter(
            "dualpath_router_read_side", "Requests by the side planned to read their KV", ["side"], registry=registry
        )
        self.retries = Counter("dualpath_router_retries", "Requests sent to a second pair", registry=registry)
        self.in_flight = Gauge("dualpath_router_in_flight", "Requests placed and not ended", registry=registry)
        self.first_bytes_s: list[float] = []
        """Since they were taken last, for the dashboard; bounded."""

    def placed(self, placement: Placement, prompt_tokens: int) -> None:
        """A request has got its engines."""
        self._reasons.labels(placement.reason).inc()
        self._read_sides.labels(plan_of_share(placement.decode_read_share, "").read_side).inc()
        self._engines.labels("prefill", placement.prefill_url).inc()
        self._engines.labels("decode", placement.decode_url).inc()
        self._waited.observe(placement.waited_s)
        self._prompt_tokens.inc(prompt_tokens)
        self._expected_hit_tokens.inc(placement.expected_hit_tokens)

    def first_byte(self, ttft_s: float) -> None:
        """The first byte of an answer has gone to its client."""
        self._first_byte.observe(ttft_s)
        if len(self.first_bytes_s) < 100_000:
            self.first_bytes_s.append(ttft_s)

"""What a front process has served."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class FrontMetrics:
    """Prometheus metrics of one front process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dualpath_router_requests", "Requests by how they ended", ["outcome"], registry=registry
        )
        self.read_sides = Counter(
            "dualpath_router_read_side", "Requests by the side planned to read their KV", ["side"], registry=registry
        )
        self.retries = Counter("dualpath_router_retries", "Requests sent to a second pair", registry=registry)
        self.in_flight = Gauge("dualpath_router_in_flight", "Requests being served", registry=registry)

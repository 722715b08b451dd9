"""What the router counts, for `/metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RouterMetrics:
    """Prometheus metrics of one router, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dualpath_router_requests", "Requests by how they ended", ["outcome"], registry=self.registry
        )
        self.read_sides = Counter(
            "dualpath_router_read_side",
            "Requests by the side planned to read their KV",
            ["side"],
            registry=self.registry,
        )
        self.retries = Counter("dualpath_router_retries", "Requests sent to a second pair", registry=self.registry)
        self.malformed_reports = Counter(
            "dualpath_router_malformed_reports", "Control messages that were dropped", registry=self.registry
        )
        self.in_flight = Gauge("dualpath_router_in_flight", "Requests being served", registry=self.registry)
        self.waiting = Gauge("dualpath_router_waiting", "Requests in the router's queue", registry=self.registry)

"""What this engine process has counted: fallbacks, bytes a side, outcomes; shown in `/server_info` and `/metrics`."""

import logging
import threading
from collections import Counter

from prometheus_client import Counter as PrometheusCounter

logger = logging.getLogger(__name__)

FALLBACK_REASONS = (
    "decode_read_failed",
    "prefill_read_failed",
    "namespace_mismatch",
    "prefill_buffer_full",
    "peer_pull_failed",
    "plan_needs_dual",
    "persist_dropped",
    "persist_no_buffer",
    "persist_failed",
    "store_full",
    "block_corrupt",
    "block_truncated",
    "lookup_failed",
)
"""Every way in which the system does less than planned; each is counted and logged when it happens."""


class EngineCounters:
    """Thread-safe counters of one engine process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._metric = _fallback_metric()
        self._events = _event_metric()

    def add(self, name: str, amount: int = 1) -> None:
        """Count `amount` under `name`."""
        if amount:
            with self._lock:
                self._values[name] += amount
            self._events.labels(name=name).inc(amount)

    def fallback(self, reason: str, detail: str) -> None:
        """Count one fallback and log why. Raises ValueError for a reason not in FALLBACK_REASONS."""
        if reason not in FALLBACK_REASONS:
            raise ValueError(f"unknown fallback reason {reason!r}")
        with self._lock:
            self._fallbacks[reason] += 1
        self._metric.labels(reason=reason).inc()
        logger.warning("DualPath fallback %s: %s", reason, detail)

    def snapshot(self) -> dict[str, dict[str, int]]:
        """`{"counts": {...}, "fallbacks": {...}}` as plain dictionaries."""
        with self._lock:
            return {"counts": dict(self._values), "fallbacks": dict(self._fallbacks)}


_metrics: dict[str, PrometheusCounter] = {}


def _fallback_metric() -> PrometheusCounter:
    return _metric("sglang:dualpath_fallbacks", "Times the planned KV path was not taken, by reason", "reason")


def _event_metric() -> PrometheusCounter:
    return _metric("sglang:dualpath_events", "Blocks, bytes and requests handled by DualPath, by name", "name")


def _metric(name: str, help_text: str, label: str) -> PrometheusCounter:
    if name not in _metrics:
        _metrics[name] = PrometheusCounter(name, help_text, labelnames=(label,))
    return _metrics[name]

"""Where the time to the first token goes, as this engine sees it: one histogram a stage, in `/metrics` and `/server_info`.

Prefill engine: `queue` (arrival until its reads begin), `load` (until its cached KV is in a DRAM buffer), `wait` (until its first
forward begins), `compute` (until its last one ends), `transfer` (until the decode engine has everything). Decode engine: `admit`
(complete in its buffer until it is on the device).
"""

import threading
from typing import Any, Literal

from prometheus_client import Histogram

Stage = Literal["queue", "load", "wait", "compute", "transfer", "admit"]

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

_histograms: dict[str, Histogram] = {}


class StageTimes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Stage, tuple[int, float]] = {}
        self._histogram = _histogram()

    def observe(self, stage: Stage, elapsed_s: float) -> None:
        """A request has spent `elapsed_s` in a stage."""
        with self._lock:
            count, total_s = self._sums.get(stage, (0, 0.0))
            self._sums[stage] = (count + 1, total_s + elapsed_s)
        self._histogram.labels(stage=stage).observe(elapsed_s)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """`{stage: {"count": n, "sum_s": s}}`."""
        with self._lock:
            return {stage: {"count": count, "sum_s": round(total, 6)} for stage, (count, total) in self._sums.items()}


def _histogram() -> Histogram:
    name = "sglang:dualpath_stage_seconds"
    if name not in _histograms:
        _histograms[name] = Histogram(
            name,
            "Seconds a request spends in each stage up to its first token",
            labelnames=("stage",),
            buckets=BUCKETS_S,
        )
    return _histograms[name]

"""Stage times: counted, summed, and in Prometheus' registry."""

from prometheus_client import REGISTRY
from sglang_dualpath.telemetry.stages import StageTimes

NAME = "sglang:dualpath_stage_seconds"


def test_each_stage_has_its_count_and_its_sum() -> None:
    stages = StageTimes()
    stages.observe("load", 0.5)
    stages.observe("load", 0.25)
    stages.observe("admit", 2.0)
    assert stages.snapshot() == {"load": {"count": 2, "sum_s": 0.75}, "admit": {"count": 1, "sum_s": 2.0}}


def test_all_instances_share_one_histogram() -> None:
    def seen() -> float:
        return REGISTRY.get_sample_value(f"{NAME}_count", {"stage": "wait"}) or 0.0

    before = seen()
    StageTimes().observe("wait", 0.1)
    StageTimes().observe("wait", 0.1)
    assert seen() == before + 2

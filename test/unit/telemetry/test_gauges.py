"""Gauges follow the engine's queues and buffer."""

from pathlib import Path

from prometheus_client import REGISTRY
from sglang_dualpath.telemetry.gauges import EngineGauges

from test.unit.engine_parts import make_resources


def test_gauges_show_what_is_held_now(tmp_path: Path) -> None:
    held = make_resources(tmp_path, role="decode")
    gauges = EngineGauges()

    def shown(name: str) -> float | None:
        return REGISTRY.get_sample_value(f"sglang:dualpath_{name}")

    lease = held.buffer.lease(2)
    assert lease is not None
    gauges.show(held)
    assert shown("buffer_used_blocks") == 2
    assert shown("buffer_capacity_blocks") == held.buffer.capacity_blocks
    lease.release()
    EngineGauges().show(held)
    assert shown("buffer_used_blocks") == 0
    assert shown("read_queue_tokens") == 0
    held.close()

"""Engine counters: every fallback has a name, a count and a log line."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from sglang_dualpath.telemetry.counters import FALLBACK_REASONS, EngineCounters


def test_a_new_engine_has_counted_nothing() -> None:
    assert EngineCounters().snapshot() == {"counts": {}, "fallbacks": {}}


def test_amounts_add_up_by_name() -> None:
    counters = EngineCounters()
    counters.add("blocks_read", 3)
    counters.add("blocks_read")
    counters.add("bytes_pulled", 7)
    assert counters.snapshot()["counts"] == {"blocks_read": 4, "bytes_pulled": 7}


def test_an_amount_of_zero_leaves_no_entry() -> None:
    counters = EngineCounters()
    counters.add("blocks_read", 0)
    assert counters.snapshot()["counts"] == {}


@pytest.mark.parametrize("reason", FALLBACK_REASONS)
def test_a_fallback_is_counted_and_logged(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    counters = EngineCounters()
    with caplog.at_level(logging.WARNING):
        counters.fallback(reason, "block 7 of request r1")
    assert counters.snapshot()["fallbacks"] == {reason: 1}
    assert f"{reason}: block 7 of request r1" in caplog.text


def test_a_fallback_without_a_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="'just_because'"):
        EngineCounters().fallback("just_because", "")


def test_no_count_is_lost_between_threads() -> None:
    counters = EngineCounters()
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: [counters.add("n") for _ in range(500)], range(8)):
            pass
    assert counters.snapshot()["counts"] == {"n": 4000}


def test_a_snapshot_does_not_change_afterwards() -> None:
    counters = EngineCounters()
    counters.add("n")
    before = counters.snapshot()
    counters.add("n")
    assert before["counts"] == {"n": 1}

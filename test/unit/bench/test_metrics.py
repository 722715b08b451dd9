"""From turns to figures."""

import math

import pytest
from sglang_dualpath.bench.metrics import SideReads, summarise
from sglang_dualpath.bench.replay import TurnResult


def turn(**fields) -> TurnResult:
    base = {
        "session_id": "a",
        "turn": 0,
        "began_s": 0.0,
        "ttft_s": 1.0,
        "ended_s": 3.0,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "output_tokens": 5,
        "text": "x",
    }
    return TurnResult(**base | fields)


def test_tpot_is_the_time_after_the_first_token_over_the_tokens_after_it() -> None:
    assert turn(began_s=1.0, ttft_s=0.5, ended_s=3.5, output_tokens=5).tpot_s == pytest.approx(0.5)
    assert turn(output_tokens=1).tpot_s is None
    assert turn(error="gone").tpot_s is None


def test_jct_is_when_the_last_agent_is_done() -> None:
    summary = summarise("x", [turn(ended_s=4.0), turn(ended_s=9.5), turn(ended_s=2.0)], [], {})
    assert summary.jct_s == 9.5


def test_percentiles_and_ratios() -> None:
    turns = [turn(ttft_s=float(i)) for i in range(1, 12)]
    reads = [SideReads(node="p", bytes_read=30), SideReads(node="d", bytes_read=10)]
    summary = summarise("x", turns, reads, {"store_full": 2})
    assert summary.ttft_p50_s == 6.0
    assert summary.ttft_p90_s == 10.0
    assert summary.hit_ratio == pytest.approx(0.64)
    assert summary.nic_max_over_avg == pytest.approx(1.5)
    assert summary.fallbacks == {"store_full": 2}


def test_nics_that_read_nothing_have_no_balance() -> None:
    assert math.isnan(summarise("x", [turn()], [SideReads(node="p", bytes_read=0)], {}).nic_max_over_avg)


def test_failed_turns_are_counted_and_in_no_figure() -> None:
    summary = summarise("x", [turn(), turn(error="gone", ended_s=99.0, ttft_s=99.0)], [], {})
    assert (summary.turns, summary.failed_turns) == (1, 1)
    assert summary.jct_s == 3.0
    assert summary.ttft_p90_s == 1.0


def test_a_replay_without_an_answer_has_no_summary() -> None:
    with pytest.raises(ValueError, match="no turn of x was answered: boom"):
        summarise("x", [turn(error="boom")], [], {})

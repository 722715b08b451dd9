"""Expected time to the first token: waiting, then computing what is not cached."""

import pytest
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.estimate import COMPUTE_TOKENS_PER_S, expected_ttft_s, waiting_s
from sglang_dualpath.router.scheduling.marks import Marks

from test.unit.router.scheduling.engines import joined, request


def test_it_waits_for_compute_or_reading_whichever_takes_longer() -> None:
    engine = joined(Cluster(), "p", "prefill", compute_tokens_per_s=100.0, read_tokens_per_s=1000.0, read_q_tokens=5000)
    assert waiting_s(engine) == 5.0
    engine.pending_new_tokens = 700
    assert waiting_s(engine) == 7.0


def test_own_tokens_count_but_for_those_held_or_stored() -> None:
    cluster = Cluster()
    engine = joined(cluster, "p", "prefill", compute_tokens_per_s=100.0)
    asked = request(prompt_tokens=1000, keys=(1, 2, 3, 4))
    assert expected_ttft_s(engine, asked) == 10.0
    engine.cached.insert(Marks.of((1, 2)))
    assert expected_ttft_s(engine, asked) == pytest.approx(10.0 - 2.56)
    assert cluster.stored is not None
    cluster.stored.insert(Marks.of((1, 2, 3)))
    assert expected_ttft_s(engine, asked) == pytest.approx(10.0 - 3.84)


def test_an_engine_that_reports_no_rate_has_the_usual_one() -> None:
    engine = Cluster().join("p", "prefill", "p", "n")
    assert expected_ttft_s(engine, request(prompt_tokens=6250)) == pytest.approx(6250 / COMPUTE_TOKENS_PER_S)

"""Which side reads: the shorter queue, or both so that they end together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.read_side import ReadSide, split_share

from test.unit.router.scheduling.engines import joined, request

MIN_PART = 100


def pair(here: int, there: int, **fields: object) -> tuple[Engine, Engine]:
    """A prefill and a decode engine with these read queues."""
    cluster = Cluster()
    return (
        joined(cluster, "p", "prefill", read_q_tokens=here, **fields),
        joined(cluster, "d", "decode", read_q_tokens=there, **fields),
    )


@pytest.mark.parametrize(("here", "there", "share"), [(5, 9, 0.0), (9, 5, 1.0)])
def test_the_shorter_queue_reads(here: int, there: int, share: float) -> None:
    assert ReadSide().share(request(), *pair(here, there)) == share


def test_equal_queues_take_turns() -> None:
    rule = ReadSide()
    assert [rule.share(request(), *pair(4, 4)) for _ in range(4)] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["shorter_queue", "split", "decode", "alternate"])
def test_engines_without_path_b_read_on_the_prefill_side(name: str) -> None:
    assert ReadSide(name).share(request(), *pair(9, 0, dual=False)) == 0.0


@pytest.mark.parametrize("name", ["shorter_queue", "split", "prefill", "decode", "alternate"])
def test_a_demanded_side_holds(name: str) -> None:
    rule = ReadSide(name)
    assert rule.share(request(read_side="decode"), *pair(0, 9)) == 1.0
    assert rule.share(request(read_side="prefill"), *pair(9, 0)) == 0.0


def test_alternating_goes_on_for_each_prefill_engine_by_itself() -> None:
    cluster = Cluster()
    decode = joined(cluster, "d", "decode")
    one, other = joined(cluster, "p0", "prefill"), joined(cluster, "p1", "prefill")
    rule = ReadSide("alternate")
    assert [rule.share(request(), engine, decode) for engine in (one, other, one, other)] == [0.0, 0.0, 1.0, 1.0]


def test_without_known_rates_or_on_one_node_a_split_is_the_shorter_queue() -> None:
    assert ReadSide("split").share(request(prompt_tokens=100_000), *pair(9, 5)) == 1.0
    same = pair(9, 5, node_id="n", read_tokens_per_s=10.0)
    assert ReadSide("split").share(request(prompt_tokens=100_000), *same) in (0.0, 1.0)


def test_a_split_by_the_rule_reads_on_both_sides() -> None:
    assert ReadSide("split").share(request(prompt_tokens=10_000), *pair(0, 0, read_tokens_per_s=10.0)) == 0.5


@given(
    st.integers(1, 100_000),
    st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)),
    st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)),
)
def test_both_parts_end_together_or_one_side_reads_all(
    tokens: int, queued: tuple[int, int], rates: tuple[float, float]
) -> None:
    share = split_share(tokens, queued, rates, MIN_PART)
    assert 0.0 <= share <= 1.0
    decode, prefill = tokens * share, tokens * (1 - share)
    if 0.0 < share < 1.0:
        assert min(decode, prefill) >= MIN_PART - 1e-6
        ends = (queued[0] + prefill) / rates[0], (queued[1] + decode) / rates[1]
        assert ends[0] == pytest.approx(ends[1], rel=1e-6)


@given(st.integers(1, 2 * MIN_PART - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_a_small_request_is_never_split(tokens: int, here: int, there: int) -> None:
    assert split_share(tokens, (here, there), (10.0, 10.0), MIN_PART) in (0.0, 1.0)

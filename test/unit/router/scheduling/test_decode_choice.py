"""Choosing the decode engine: groups by their tokens, then normal before high-load engines, with room."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DECODE_CHOICES, DecodeChoice, high_load_tokens
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.request import Request

from test.unit.router.scheduling.engines import joined, request


def group(cluster: Cluster, name: str, loads: list[tuple[int, int, int]]) -> list[Engine]:
    """The ranks of one server, by (seq, tok, free device memory)."""
    return [
        joined(cluster, f"{name}@{rank}", "decode", seq=seq, tok=tok, free_kv_tokens=free)
        for rank, (seq, tok, free) in enumerate(loads)
    ]


def two_level(asked: Request, engines: list[Engine], waiting_tokens: int) -> Engine | None:
    """What the paper's rule makes of a request."""
    return DecodeChoice("two_level").choose(asked, engines, waiting_tokens)


def chosen(engine: Engine | None) -> str | None:
    """Its name."""
    return None if engine is None else engine.engine_id


def test_the_group_with_the_fewest_tokens_gets_the_request() -> None:
    cluster = Cluster()
    busy = group(cluster, "a", [(1, 10, 10_000), (9, 900, 10_000)])
    idle = group(cluster, "b", [(5, 400, 10_000), (5, 400, 10_000)])
    assert chosen(two_level(request(), busy + idle, 0)) == "b@0"


def test_inside_it_the_normal_engine_with_the_fewest_requests() -> None:
    ranks = group(Cluster(), "a", [(3, 300, 10_000), (1, 400, 10_000), (2, 100, 10_000)])
    # Z = 1.05 * (400 + 800) / 3 = 420: the second would go beyond it with the request's 100 tokens.
    assert high_load_tokens(ranks, 400) == pytest.approx(420)
    assert chosen(two_level(request(prompt_tokens=100), ranks, 400)) == "a@2"


def test_only_without_a_normal_one_the_high_load_engine_with_the_fewest_tokens() -> None:
    ranks = group(Cluster(), "a", [(1, 500, 10_000), (9, 400, 10_000)])
    assert chosen(two_level(request(prompt_tokens=5000), ranks, 0)) == "a@1"


def test_what_may_be_generated_counts_as_length() -> None:
    ranks = group(Cluster(), "a", [(1, 100, 150), (2, 100, 5000)])
    assert chosen(two_level(request(prompt_tokens=100, output_tokens=100), ranks, 0)) == "a@1"


def test_r_is_no_more_than_the_groups_memory_could_hold() -> None:
    ranks = group(Cluster(), "a", [(0, 0, 300), (0, 0, 300)])
    assert high_load_tokens(ranks, 10_000) == pytest.approx(1.05 * 600 / 2)


def test_a_group_without_room_is_passed_over_and_without_any_the_request_waits() -> None:
    cluster = Cluster()
    full = group(cluster, "a", [(1, 10, 50)])
    roomy = group(cluster, "b", [(9, 900, 5000)])
    assert chosen(two_level(request(), full + roomy, 0)) == "b@0"
    assert two_level(request(), full, 0) is None


def test_an_idle_engine_takes_even_what_it_has_no_room_for() -> None:
    idle = group(Cluster(), "a", [(0, 0, 50)])
    assert chosen(two_level(request(prompt_tokens=10_000), idle, 0)) == "a@0"


def test_round_robin_forms_no_fixed_pairs() -> None:
    engines = group(Cluster(), "a", [(0, 0, 9)] * 2)
    rule = DecodeChoice("round_robin")
    turns = [chosen(rule.choose(request(), engines, 0)) for _ in range(4)]
    assert turns == ["a@0", "a@1", "a@1", "a@0"]


def test_chance_is_repeatable() -> None:
    engines = group(Cluster(), "a", [(0, 0, 9)] * 8)
    runs = [
        [chosen(rule.choose(request(), engines, 0)) for _ in range(20)] for rule in (DecodeChoice("random", 3),) * 1
    ]
    again = DecodeChoice("random", 3)
    assert [chosen(again.choose(request(), engines, 0)) for _ in range(20)] == runs[0]


@given(
    st.sampled_from(DECODE_CHOICES),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 999), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 600),
)
def test_whoever_is_chosen_is_one_of_those_offered(name: str, loads: list[tuple[int, int, int]], tokens: int) -> None:
    engines = group(Cluster(), "a", loads)
    made = DecodeChoice(name).choose(request(prompt_tokens=tokens), engines, 0)
    assert made is None or made in engines
    if made is None:
        assert name == "two_level"
        assert all(engine.free_kv_tokens is not None and engine.free_kv_tokens < tokens for engine in engines)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 999), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 600),
)
def test_the_most_room_tells_whether_anyone_would_take_a_request(
    loads: list[tuple[int, int, int]], tokens: int
) -> None:
    engines = group(Cluster(), "a", loads)
    rule = DecodeChoice()
    made = rule.choose(request(prompt_tokens=tokens), engines, tokens)
    assert (made is not None) == (tokens <= rule.most_room_tokens(engines))


def test_rules_that_let_nobody_wait_have_room_for_all() -> None:
    assert DecodeChoice("random").most_room_tokens(group(Cluster(), "a", [(1, 10, 0)])) == math.inf


def test_groups_follow_the_engines_that_are_offered() -> None:
    cluster = Cluster()
    small, large = group(cluster, "a", [(1, 10, 900)]), group(cluster, "b", [(1, 20, 900), (1, 20, 900)])
    rule = DecodeChoice()
    assert chosen(rule.choose(request(), small + large, 0)) == "a@0"
    assert chosen(rule.choose(request(), large, 0)) == "b@0"
    assert chosen(rule.choose(request(), small, 0)) == "a@0"

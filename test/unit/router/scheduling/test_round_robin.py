"""Round robin: everything in turn, whatever the load."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.engine import EngineLoad, RequestFacts
from sglang_dualpath.router.scheduling.round_robin import RoundRobin

from test.unit.router.scheduling.loads import fleets

A_REQUEST = RequestFacts(prompt_tokens=8)


def spread(counts: Counter[str], names: list[str]) -> int:
    """The difference between the most and the least used."""
    return max(counts[name] for name in names) - min(counts[name] for name in names)


@given(fleets("prefill"), fleets("decode"), st.integers(1, 40))
def test_no_engine_is_used_more_than_once_more_than_another(
    prefill: list[EngineLoad], decode: list[EngineLoad], n: int
) -> None:
    policy = RoundRobin()
    made = [policy.assign(A_REQUEST, prefill, decode) for _ in range(n)]
    assert None not in made
    assert spread(Counter(a.prefill_url for a in made if a), [e.url for e in prefill]) <= 1
    assert spread(Counter(a.decode_url for a in made if a), [e.url for e in decode]) <= 1


@given(fleets("prefill"), fleets("decode"))
def test_only_a_pair_with_both_paths_reads_on_the_decode_side(
    prefill: list[EngineLoad], decode: list[EngineLoad]
) -> None:
    policy = RoundRobin()
    dual = {engine.url: engine.dual for engine in (*prefill, *decode)}
    for _ in range(20):
        assignment = policy.assign(A_REQUEST, prefill, decode)
        assert assignment is not None
        both = dual[assignment.prefill_url] and dual[assignment.decode_url]
        assert assignment.read_side == "prefill" or both


@pytest.mark.parametrize(("n_prefill", "n_decode"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (2, 4), (4, 6)])
def test_all_pairs_come_up_and_on_each_both_sides_read_equally(n_prefill: int, n_decode: int) -> None:
    sides: dict[tuple[str, str], Counter[str]] = {}
    prefill = [EngineLoad(f"p{i}", "prefill", 0, 0, 0, dual=True) for i in range(n_prefill)]
    decode = [EngineLoad(f"d{i}", "decode", 0, 0, 0, dual=True) for i in range(n_decode)]
    policy = RoundRobin()
    for _ in range(4 * n_prefill * n_decode):
        made = policy.assign(A_REQUEST, prefill, decode)
        assert made is not None
        sides.setdefault((made.prefill_url, made.decode_url), Counter())[made.read_side] += 1
    assert set(sides) == set(product((e.url for e in prefill), (e.url for e in decode)))
    assert all(counts == {"prefill": 2, "decode": 2} for counts in sides.values())


def test_with_equal_numbers_every_engine_reads_equally_within_one_round_of_pairs() -> None:
    prefill = [EngineLoad(f"p{i}", "prefill", 0, 0, 0, dual=True) for i in range(2)]
    decode = [EngineLoad(f"d{i}", "decode", 0, 0, 0, dual=True) for i in range(2)]
    policy = RoundRobin()
    made = [policy.assign(A_REQUEST, prefill, decode) for _ in range(4)]
    readers = Counter(a.prefill_url if a.read_side == "prefill" else a.decode_url for a in made if a is not None)
    assert readers == {"p0": 1, "p1": 1, "d0": 1, "d1": 1}


def test_a_fleet_that_shrinks_or_grows_is_still_served() -> None:
    prefill = [EngineLoad(f"p{i}", "prefill", 0, 0, 0, dual=True) for i in range(5)]
    decode = [EngineLoad("d", "decode", 0, 0, 0, dual=True)]
    policy = RoundRobin()
    for size in (5, 2, 1, 4):
        used = {made.prefill_url for _ in range(size) if (made := policy.assign(A_REQUEST, prefill[:size], decode))}
        assert used == {engine.url for engine in prefill[:size]}

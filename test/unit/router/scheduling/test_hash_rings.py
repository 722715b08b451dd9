"""Two rings: two candidates a key, and a change moves a segment only."""

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.hash_rings import HashRings

KEYS = range(1500)


def anyone(_: str) -> bool:
    """Every engine may be taken."""
    return True


def rings_of(n_engines: int) -> HashRings:
    """Rings with engines e0, e1, ..."""
    rings = HashRings()
    for i in range(n_engines):
        rings.add(f"e{i}")
    return rings


@given(st.integers(1, 20), st.integers(0, 2**64 - 1))
def test_candidates_are_distinct_where_there_are_two(n_engines: int, key: int) -> None:
    found = rings_of(n_engines).candidates(key, anyone)
    assert len(set(found)) == len(found) == min(2, n_engines)


def test_nobody_there_is_no_candidate() -> None:
    assert HashRings().candidates(5, anyone) == []


@given(st.integers(3, 20), st.integers(0, 2**64 - 1), st.integers(0, 19))
def test_one_who_may_not_be_taken_is_replaced(n_engines: int, key: int, barred: int) -> None:
    name = f"e{barred % n_engines}"
    found = rings_of(n_engines).candidates(key, lambda one: one != name)
    assert name not in found
    assert len(set(found)) == 2


def test_a_join_moves_about_two_nths_of_the_pairs_and_only_to_the_newcomer() -> None:
    rings = rings_of(16)
    before = [rings.candidates(key, anyone) for key in KEYS]
    rings.add("new")
    after = [rings.candidates(key, anyone) for key in KEYS]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if set(old) != set(new)]
    assert all("new" in new for _, new in moved)
    assert 0 < len(moved) / len(KEYS) <= 2 * 2 / 17
    rings.remove("new")
    assert [rings.candidates(key, anyone) for key in KEYS] == before


def test_the_rings_are_independent() -> None:
    """Keys that share a first candidate are spread over the others by their second."""
    rings = rings_of(8)
    pairs = [rings.candidates(key, anyone) for key in KEYS]
    seconds = {second for first, second in pairs if first == "e0"}
    assert len(seconds) == 7


def test_keys_are_spread_over_the_engines() -> None:
    rings = rings_of(8)
    firsts = [rings.candidates(key, anyone)[0] for key in KEYS]
    counts = [firsts.count(f"e{i}") for i in range(8)]
    assert max(counts) < 2 * len(KEYS) / 8

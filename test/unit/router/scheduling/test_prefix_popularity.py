"""Hot prefixes are told apart by longer keys, cooled ones are not."""

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.prefix_popularity import MAX_DEPTH, PrefixPopularity

N_ENGINES = 8


def observed(popularity: PrefixPopularity, *requests: tuple[int, ...]) -> None:
    """These requests, one after the other."""
    for keys in requests:
        popularity.observe(keys, N_ENGINES)


def test_a_prefix_nobody_shares_is_hashed_by_its_first_block() -> None:
    popularity = PrefixPopularity()
    observed(popularity, *[(i, i + 1000, i + 2000) for i in range(200)])
    assert popularity.depth((7, 1007, 2007)) == 1


def test_a_hot_prefix_is_split_down_to_where_its_requests_differ() -> None:
    """13 blocks in common in every second request: they are hashed by the 14th."""
    popularity = PrefixPopularity()
    common = tuple(range(1, 14))
    for i in range(100):
        observed(popularity, (*common, 500 + i, 900 + i), (3000 + i, 4000 + i))
    assert popularity.depth((*common, 77, 78)) == 14
    assert popularity.depth((3001, 4001)) == 1


def test_a_common_prefix_of_a_long_system_prompt_is_split_too() -> None:
    """125 blocks of tools and instructions, as coding agents have them."""
    popularity = PrefixPopularity()
    common = tuple(range(1, 126))
    for i in range(600):
        observed(popularity, (*common, 500 + i % 50, 5000 + i))
    assert popularity.depth((*common, 7777, 7778)) == 126


def test_with_many_engines_a_few_requests_make_no_prefix_hot() -> None:
    """4 of 200 requests are more than two average engines' share of 128; they could be chance."""
    popularity = PrefixPopularity()
    for i in range(2000):
        popularity.observe((1, i + 10) if i % 50 == 0 else (i + 5000, 2), 128)
    assert popularity.share(1) > 2 / 128
    assert popularity.depth((1, 99)) == 2
    assert len(popularity._seen) == 20 * 128 / 2
    fresh = PrefixPopularity()
    for i in range(200):
        fresh.observe((1, i + 10) if i % 50 == 0 else (i + 5000, 2), 128)
    assert fresh.depth((1, 99)) == 1


def test_too_few_samples_split_nothing() -> None:
    popularity = PrefixPopularity(min_samples=20)
    observed(popularity, *[(1, 2, 3)] * 19)
    assert popularity.depth((1, 2, 3)) == 1
    observed(popularity, (1, 2, 3))
    assert popularity.depth((1, 2, 3)) == 3


def test_between_the_two_bounds_a_prefix_stays_what_it_was() -> None:
    """With 8 engines it is split above a share of 1/4 and shrinks below 1/8."""
    warming = PrefixPopularity(window=100)
    for i in range(100):
        observed(warming, (1, i + 10) if i % 5 == 0 else (i + 1000, 2))
    assert warming.share(1) == 0.2
    assert warming.depth((1, 99)) == 1
    cooling = PrefixPopularity(window=100)
    observed(cooling, *[(1, i + 10) for i in range(100)])
    for i in range(100):
        observed(cooling, (1, i + 10) if i % 5 == 0 else (i + 1000, 2))
    assert cooling.share(1) == 0.2
    assert cooling.depth((1, 99)) == 2
    for i in range(100):
        observed(cooling, (1, i + 10) if i % 10 == 0 else (i + 5000, 2))
    assert cooling.depth((1, 99)) == 1


def test_what_has_left_the_window_is_forgotten() -> None:
    popularity = PrefixPopularity(window=50, min_samples=10)
    observed(popularity, *[(1, 2)] * 50)
    observed(popularity, *[(i, i) for i in range(100, 150)])
    assert popularity.share(1) == 0.0
    assert popularity.depth((1, 2)) == 1
    assert len(popularity._counts) == 50


@given(st.lists(st.lists(st.integers(0, 3), max_size=20).map(tuple), max_size=80))
def test_the_depth_is_never_beyond_the_prompt_nor_the_bound(requests: list[tuple[int, ...]]) -> None:
    popularity = PrefixPopularity(window=30, min_samples=1)
    observed(popularity, *requests)
    for keys in requests:
        assert popularity.depth(keys) <= min(len(keys), MAX_DEPTH)
        assert popularity.depth(keys) >= min(1, len(keys))

"""The compute rate: assumed at first, then measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.telemetry.rate import INITIAL_TOKENS_PER_S, ComputeRate

observations = st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-4, 1e3)), min_size=1, max_size=20)


def test_nothing_measured_yet_is_the_assumed_rate() -> None:
    assert ComputeRate().tokens_per_s == INITIAL_TOKENS_PER_S


def test_the_first_forward_replaces_the_assumption() -> None:
    rate = ComputeRate()
    rate.observe(500, 2.0)
    assert rate.tokens_per_s == 250.0


@pytest.mark.parametrize(("tokens", "elapsed_s"), [(0, 1.0), (-5, 1.0), (10, 0.0), (10, -1.0)])
def test_a_forward_of_nothing_or_of_no_time_says_nothing(tokens: int, elapsed_s: float) -> None:
    rate = ComputeRate()
    rate.observe(tokens, elapsed_s)
    assert rate.tokens_per_s == INITIAL_TOKENS_PER_S


@given(observations)
def test_the_average_stays_between_the_slowest_and_the_fastest_forward(seen: list[tuple[int, float]]) -> None:
    rate = ComputeRate()
    for tokens, elapsed_s in seen:
        rate.observe(tokens, elapsed_s)
    rates = [tokens / elapsed_s for tokens, elapsed_s in seen]
    assert min(rates) * (1 - 1e-9) <= rate.tokens_per_s <= max(rates) * (1 + 1e-9)


def test_a_lasting_change_of_speed_is_followed() -> None:
    rate = ComputeRate()
    rate.observe(1000, 1.0)
    for _ in range(60):
        rate.observe(100, 1.0)
    assert rate.tokens_per_s == pytest.approx(100, rel=0.01)

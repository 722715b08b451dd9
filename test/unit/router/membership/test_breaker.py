"""The circuit breaker: failures in a row open it, trials one by one close it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.membership.breaker import Breaker, BreakerSettings

SETTINGS = BreakerSettings(failure_threshold=3, success_threshold=2, window_s=10.0, open_s=5.0)


def opened() -> Breaker:
    """One that has opened at 0 s."""
    breaker = Breaker(SETTINGS)
    for _ in range(3):
        breaker.end(0.0, failed=True)
    assert breaker.state(0.0) == "open"
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(SETTINGS)
    breaker.end(0.0, failed=True)
    breaker.end(0.0, failed=True)
    assert breaker.allows(0.0)
    breaker.end(0.0, failed=True)
    assert not breaker.allows(0.0)
    assert breaker.n_opened == 1


def test_a_good_request_between_them_starts_the_count_anew() -> None:
    breaker = Breaker(SETTINGS)
    for failed in (True, True, False, True, True):
        breaker.end(0.0, failed=failed)
    assert breaker.state(0.0) == "closed"


def test_failures_far_apart_do_not_add_up() -> None:
    breaker = Breaker(SETTINGS)
    for at_s in (0.0, 9.0, 11.0):
        breaker.end(at_s, failed=True)
    assert breaker.state(11.0) == "closed"


def test_what_says_nothing_of_the_server_changes_nothing() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(9):
        breaker.end(0.0, failed=None)
    assert breaker.state(0.0) == "closed"


def test_after_its_time_one_request_at_a_time_tries() -> None:
    breaker = opened()
    assert not breaker.allows(4.9)
    assert breaker.state(5.0) == "half_open"
    assert breaker.allows(5.0)
    breaker.begin(5.0)
    assert not breaker.allows(5.1)


def test_enough_good_trials_close_it() -> None:
    breaker = opened()
    for _ in range(2):
        assert breaker.allows(6.0)
        breaker.begin(6.0)
        breaker.end(6.0, failed=False)
    assert breaker.state(6.0) == "closed"


def test_a_failed_trial_opens_it_for_as_long_again() -> None:
    breaker = opened()
    breaker.begin(6.0)
    breaker.end(7.0, failed=True)
    assert breaker.state(11.9) == "open"
    assert breaker.state(12.0) == "half_open"


def test_a_trial_that_says_nothing_makes_way_for_the_next() -> None:
    breaker = opened()
    breaker.begin(6.0)
    breaker.end(6.5, failed=None)
    assert breaker.allows(6.5)


@pytest.mark.parametrize("failed", [True, False])
def test_requests_from_before_it_opened_do_not_count_as_trials(failed: bool) -> None:
    breaker = opened()
    breaker.end(5.5, failed=failed)
    assert breaker.state(5.5) == "half_open"
    assert breaker.allows(5.5)


def test_a_threshold_of_0_switches_it_off() -> None:
    breaker = Breaker(BreakerSettings(failure_threshold=0))
    for _ in range(100):
        breaker.end(0.0, failed=True)
    assert breaker.allows(0.0)


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([True, False, None])), max_size=60))
def test_it_always_comes_to_try_again(events: list[tuple[float, bool | None]]) -> None:
    breaker, now_s = Breaker(SETTINGS), 0.0
    for step_s, failed in events:
        now_s += step_s
        if breaker.allows(now_s):
            breaker.begin(now_s)
            breaker.end(now_s, failed)
    assert breaker.allows(now_s + SETTINGS.open_s + 0.001)

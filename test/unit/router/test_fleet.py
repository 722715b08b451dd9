"""The fleet: what the router knows of engines, by their reports and by its own assignments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.fleet import REPORT_FRESH_S, REPORT_LAG_S, Fleet
from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad, ReadSide

from test.unit.router.running_router import report_of

P, D = "http://p:1", "http://d:1"


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    """One prefill and one decode engine that have not reported."""
    made = Fleet(clock=clock)
    made.add(P, "prefill", 8998)
    made.add(D, "decode")
    return made


def the_load(fleet: Fleet, url: str) -> EngineLoad:
    """One engine as a policy sees it."""
    (load,) = [load for role in ("prefill", "decode") for load in fleet.loads(role) if load.url == url]  # type: ignore[arg-type]
    return load


def test_an_engine_without_a_report_has_what_was_assigned_and_no_limits(fleet: Fleet) -> None:
    fleet.begin(Assignment(P, D, "prefill"), 100)
    assert the_load(fleet, P) == EngineLoad(P, "prefill", seq=1, tok=100, read_q_tokens=100, dual=False)
    assert the_load(fleet, D) == EngineLoad(D, "decode", seq=1, tok=100, read_q_tokens=0, dual=False)


def test_a_report_tells_limits_and_paths(fleet: Fleet) -> None:
    fleet.take_report(report_of(D, "decode", seq=2, tok=50, read_q_tokens=7, alpha_tokens=30, beta_tokens=40))
    load = the_load(fleet, D)
    assert (load.seq, load.tok, load.read_q_tokens) == (2, 50, 7)
    assert (load.dual, load.alpha_tokens, load.beta_tokens) == (True, 30, 40)


@given(
    reported=st.integers(0, 1000),
    assigned=st.lists(st.integers(1, 100), max_size=6),
    side=st.sampled_from(["prefill", "decode"]),
)
def test_neither_the_report_nor_the_own_assignments_are_forgotten(
    reported: int, assigned: list[int], side: ReadSide
) -> None:
    fleet = Fleet(clock=Clock())
    fleet.add(P, "prefill", 8998)
    fleet.add(D, "decode")
    fleet.take_report(report_of(P, "prefill", tok=reported, read_q_tokens=reported))
    for tokens in assigned:
        fleet.begin(Assignment(P, D, side), tokens)
    load = the_load(fleet, P)
    assert load.tok == max(reported, sum(assigned))
    assert load.seq == len(assigned)
    assert load.read_q_tokens == reported + (sum(assigned) if side == "prefill" else 0)


def test_a_read_is_not_counted_twice_once_a_report_has_seen_it(fleet: Fleet, clock: Clock) -> None:
    fleet.take_report(report_of(D, "decode"))
    fleet.begin(Assignment(P, D, "decode"), 100)
    clock.now_s += REPORT_LAG_S + 0.01
    fleet.take_report(report_of(D, "decode", read_q_tokens=100))
    assert the_load(fleet, D).read_q_tokens == 100


def test_a_read_just_assigned_is_counted_until_a_report_can_have_seen_it(fleet: Fleet, clock: Clock) -> None:
    fleet.take_report(report_of(D, "decode"))
    fleet.begin(Assignment(P, D, "decode"), 100)
    clock.now_s += REPORT_LAG_S / 2
    fleet.take_report(report_of(D, "decode", read_q_tokens=0))
    assert the_load(fleet, D).read_q_tokens == 100


def test_an_old_report_counts_as_none(fleet: Fleet, clock: Clock) -> None:
    fleet.take_report(report_of(D, "decode", tok=500))
    clock.now_s += REPORT_FRESH_S + 0.01
    assert the_load(fleet, D) == EngineLoad(D, "decode", seq=0, tok=0, read_q_tokens=0, dual=False)


# ---- requests that end


@given(st.data())
def test_after_all_requests_have_ended_no_work_is_left(data: st.DataObject) -> None:
    fleet = Fleet(clock=Clock())
    for i in range(2):
        fleet.add(f"http://p:{i}", "prefill", 8998)
        fleet.add(f"http://d:{i}", "decode")
    pairs = st.builds(
        Assignment,
        st.sampled_from(["http://p:0", "http://p:1"]),
        st.sampled_from(["http://d:0", "http://d:1"]),
        st.sampled_from(["prefill", "decode"]),
    )
    running = [(pair, fleet.begin(pair, 10)) for pair in data.draw(st.lists(pairs, max_size=12))]
    for pair, ticket in data.draw(st.permutations(running)):
        if data.draw(st.booleans()):
            fleet.end_prefill(pair, ticket)
        fleet.end(pair, ticket)
        fleet.end(pair, ticket)
    assert [engine.work for engine in fleet.engines()] == [{}] * 4


def test_the_end_of_prefill_leaves_the_decode_engine_its_work(fleet: Fleet) -> None:
    pair = Assignment(P, D, "decode")
    ticket = fleet.begin(pair, 10)
    fleet.end_prefill(pair, ticket)
    assert the_load(fleet, P).seq == 0
    assert the_load(fleet, D).seq == 1


def test_one_request_ending_leaves_the_others(fleet: Fleet) -> None:
    pair = Assignment(P, D, "decode")
    first, _ = fleet.begin(pair, 10), fleet.begin(pair, 7)
    fleet.end(pair, first)
    assert (the_load(fleet, P).tok, the_load(fleet, D).tok) == (7, 7)


# ---- engines that come and go


def test_an_engine_joins_by_its_report() -> None:
    fleet = Fleet()
    fleet.take_report(report_of("http://new:1/", "prefill"))
    engine = fleet.engine("http://new:1")
    assert (engine.role, engine.bootstrap_port, engine.healthy) == ("prefill", 8998, True)


def test_a_trailing_slash_is_the_same_engine(fleet: Fleet) -> None:
    fleet.add(P + "/", "prefill")
    fleet.take_report(report_of(D + "/", "decode"))
    assert [engine.url for engine in fleet.engines()] == [P, D]


def test_adding_an_engine_again_keeps_what_is_known(fleet: Fleet) -> None:
    fleet.take_report(report_of(P, "prefill", tok=5))
    fleet.add(P, "prefill")
    assert the_load(fleet, P).tok == 5


def test_a_bootstrap_port_nobody_named_comes_from_the_report() -> None:
    fleet = Fleet()
    fleet.add(P, "prefill", None)
    fleet.take_report(report_of(P, "prefill", bootstrap_port=7777))
    assert fleet.engine(P).bootstrap_port == 7777


def test_a_report_in_another_role_than_the_engine_was_given_is_not_taken(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.take_report(report_of(P, "decode", tok=5))
    assert fleet.engine(P).reports == {}
    assert f"{P} reports as a decode engine but was added as a prefill engine" in caplog.text


def test_the_ranks_of_one_engine_are_one_load(fleet: Fleet) -> None:
    for rank, tok in ((0, 10), (1, 30)):
        fleet.take_report(
            report_of(D, "decode", dp_rank=rank, seq=1, tok=tok, read_q_tokens=7, free_buffer_tokens=50, beta_tokens=40)
        )
    load = the_load(fleet, D)
    assert (load.seq, load.tok) == (2, 40)
    assert load.read_q_tokens == 7
    assert (load.beta_tokens, load.free_buffer_tokens) == (80, 50)


def test_a_rank_that_has_fallen_silent_no_longer_counts(fleet: Fleet, clock: Clock) -> None:
    fleet.take_report(report_of(D, "decode", dp_rank=0, tok=10))
    clock.now_s += REPORT_FRESH_S + 0.01
    fleet.take_report(report_of(D, "decode", dp_rank=1, tok=30))
    assert the_load(fleet, D).tok == 30
    assert set(fleet.engine(D).reports) == {1}


def test_an_engine_that_is_not_healthy_is_not_offered(fleet: Fleet) -> None:
    fleet.set_health(P, False)
    assert fleet.loads("prefill") == []
    assert [engine.url for engine in fleet.engines("prefill")] == [P]
    fleet.set_health(P, True)
    assert [load.url for load in fleet.loads("prefill")] == [P]


def test_an_engine_to_pass_over_is_not_offered(fleet: Fleet) -> None:
    assert fleet.loads("prefill", frozenset({P})) == []


def test_every_change_that_may_let_a_request_go_on_is_announced(fleet: Fleet) -> None:
    seen: list[str] = []
    watched = Fleet(on_change=lambda: seen.append("change"))
    pair = Assignment(P, D, "decode")
    steps = [
        lambda: watched.add(P, "prefill", 8998),
        lambda: watched.add(D, "decode"),
        lambda: watched.take_report(report_of(P, "prefill")),
        lambda: watched.set_health(P, False),
        lambda: watched.set_health(P, True),
        lambda: watched.set_health(P, True),
        lambda: watched.end_prefill(pair, 0),
        lambda: watched.end(pair, 0),
    ]
    for n, step in enumerate(steps, start=1):
        step()
        assert len(seen) == n

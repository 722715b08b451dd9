"""Requests in, assignments out: who waits, who overtakes, and that nobody is lost."""

from collections.abc import Sequence

import pytest
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.marks import Marks
from sglang_dualpath.router.scheduling.placeable import Unplaceable
from sglang_dualpath.router.scheduling.policy.dualmap import DualMap
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.min_ttft import MinTtft
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.room_line import ROOM_LOOKAHEAD, ROOM_PATIENCE_S

from test.unit.router.scheduling.engines import assigned, joined, report, request, scheduler


class Fixed(FreeChoice):
    """Binds every request to the engine its id begins with, and holds those of overloaded ones."""

    holds = True

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        wanted = request.request_id.partition("-")[0]
        return Choice(next((e for e in engines if e.engine_id == wanted), engines[0]), "fixed")


def test_a_request_gets_both_engines_at_once() -> None:
    made = scheduler(1, 1)
    made.submit(request("a"))
    assert assigned(list(made.run(0.0))) == [("a", "p0", "d0")]
    assert made.n_waiting == 0


def test_the_head_of_the_line_waits_while_all_are_overloaded_and_a_report_fetches_it() -> None:
    made = scheduler(1, 1)
    for name, tokens in (("a", 2000), ("b", 10), ("c", 10)):
        made.submit(request(name, tokens))
    assert [name for name, _, _ in assigned(list(made.run(0.0)))] == ["a"]
    assert made.n_waiting == 2
    made.end_prefill("a")
    made.cluster.report(report("p0"), 1.0)
    assert [name for name, _, _ in assigned(list(made.run(1.0)))] == ["b", "c"]


def test_higher_priority_goes_first_and_equals_in_order() -> None:
    made = scheduler(1, 1)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        made.submit(request(name, 1, priority=priority))
    assert [name for name, _, _ in assigned(list(made.run(0.0)))] == ["b", "d", "a", "c"]


def test_an_engine_that_has_failed_a_request_is_passed_over() -> None:
    made = scheduler(2, 2)
    made.submit(request("a", passed_over=frozenset({"p0", "d0"})))
    assert assigned(list(made.run(0.0))) == [("a", "p1", "d1")]


def test_one_that_has_passed_over_all_of_a_role_cannot_be_placed_and_blocks_nobody() -> None:
    made = scheduler(1, 2)
    made.submit(request("a", passed_over=frozenset({"p0"})))
    made.submit(request("b"))
    first, second = made.run(0.0)
    assert isinstance(first, Unplaceable)
    assert (first.request.request_id, first.role) == ("a", "prefill")
    assert isinstance(second, Assignment)


@pytest.mark.parametrize(("n_prefill", "n_decode", "role"), [(0, 1, "prefill"), (1, 0, "decode")])
def test_without_engines_of_a_role_nobody_waits(n_prefill: int, n_decode: int, role: str) -> None:
    made = scheduler(n_prefill, n_decode)
    made.submit(request("a"))
    (only,) = made.run(0.0)
    assert isinstance(only, Unplaceable)
    assert only.role == role
    assert made.n_waiting == 0


def test_one_who_gives_up_leaves_no_trace() -> None:
    made = scheduler(1, 1)
    made.submit(request("a"))
    assert made.withdraw("a")
    assert not made.withdraw("a")
    assert list(made.run(0.0)) == []


def test_the_id_of_an_unfinished_request_is_refused() -> None:
    made = scheduler(1, 1)
    made.submit(request("a"))
    with pytest.raises(ValueError, match="waits already"):
        made.submit(request("a"))
    list(made.run(0.0))
    with pytest.raises(ValueError, match="known already"):
        made.submit(request("a"))
    made.end("a")
    made.submit(request("a"))


def test_a_retry_whose_engines_are_overloaded_does_not_hold_up_what_others_could_take() -> None:
    made = scheduler(2, 1)
    made.cluster.report(report("p1", tok=5000), 0.0)
    made.submit(request("retry", 10, passed_over=frozenset({"p0"})))
    made.submit(request("b", 10))
    assert assigned(list(made.run(0.0))) == [("b", "p0", "d0")]
    made.cluster.report(report("p1"), 1.0)
    assert assigned(list(made.run(1.0))) == [("retry", "p1", "d0")]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("gone", ["p0", "d0"])
def test_the_last_engine_may_go_between_two_decisions(policy: str, gone: str) -> None:
    made = scheduler(1, 1, POLICIES[policy](PolicySettings()), decode=DecodeChoice("least_loaded"))
    made.submit(request("a"))
    made.submit(request("b"))
    run = made.run(0.0)
    assert isinstance(next(run), Assignment)
    made.set_available(made.cluster.engines[gone], False)
    (refused,) = run
    assert isinstance(refused, Unplaceable)
    assert made.n_waiting == 0


def test_what_is_not_under_way_cannot_end() -> None:
    made = scheduler(1, 1)
    made.submit(request("a"))
    assert not made.end("a")
    assert not made.end_prefill("nobody")
    assert [name for name, _, _ in assigned(list(made.run(0.0)))] == ["a"]
    assert made.end("a")
    assert not made.end("a")


# ---- held for an engine


def test_one_held_for_an_overloaded_engine_is_overtaken_and_released_in_order() -> None:
    made = scheduler(2, 1, Fixed())
    made.cluster.report(report("p0", tok=5000), 0.0)
    for name in ("p0-a", "p0-b", "p1-c"):
        made.submit(request(name, 10))
    assert [name for name, _, _ in assigned(list(made.run(0.0)))] == ["p1-c"]
    assert made.n_waiting == 2
    made.cluster.report(report("p0"), 1.0)
    assert assigned(list(made.run(1.0))) == [("p0-a", "p0", "d0"), ("p0-b", "p0", "d0")]
    assert made.n_waiting == 0


def test_when_its_engine_goes_a_held_request_finds_another() -> None:
    made = scheduler(2, 1, Fixed())
    made.cluster.report(report("p0", tok=5000), 0.0)
    made.submit(request("p0-a", 10))
    assert list(made.run(0.0)) == []
    made.leave("p0")
    assert assigned(list(made.run(0.0))) == [("p0-a", "p1", "d0")]


def test_when_its_engine_goes_a_held_request_has_its_old_place_in_the_queue() -> None:
    made = scheduler(2, 1, Fixed())
    for engine_id in ("p0", "p1"):
        made.cluster.report(report(engine_id, tok=5000), 0.0)
    made.submit(request("p0-old", 10))
    list(made.run(0.0))
    made.submit(request("p1-new", 10))
    made.leave("p0")
    made.cluster.report(report("p1"), 1.0)
    assert [name for name, _, _ in assigned(list(made.run(1.0)))] == ["p0-old", "p1-new"]


def test_the_id_of_one_who_gave_up_means_the_new_request() -> None:
    made = scheduler(2, 1, Fixed())
    made.cluster.report(report("p0", tok=5000), 0.0)
    for tokens in (10, 20, 30):
        made.withdraw("p0-a")
        made.submit(request("p0-a", tokens))
        list(made.run(0.01))
    made.cluster.report(report("p0"), 0.02)
    assert [name for name, _, _ in assigned(list(made.run(0.02)))] == ["p0-a"]
    assert made.cluster.work["p0-a"].prompt_tokens == 30
    assert made.n_waiting == 0


def test_a_held_request_can_be_withdrawn() -> None:
    made = scheduler(1, 1, Fixed())
    made.cluster.report(report("p0", tok=5000), 0.0)
    made.submit(request("p0-a", 10))
    list(made.run(0.0))
    assert made.withdraw("p0-a")
    assert made.n_waiting == 0
    made.cluster.report(report("p0"), 1.0)
    assert list(made.run(1.0)) == []


def test_with_the_last_engine_held_requests_learn_that_there_is_none() -> None:
    made = scheduler(1, 1, Fixed())
    made.cluster.report(report("p0", tok=5000), 0.0)
    made.submit(request("p0-a", 10))
    list(made.run(0.0))
    made.set_available(made.cluster.engines["d0"], False)
    (only,) = made.run(0.0)
    assert isinstance(only, Unplaceable)
    assert made.n_waiting == 0


def test_held_requests_move_to_their_idle_candidate() -> None:
    made = scheduler(2, 1, DualMap(PolicySettings(ttft_slo_s=1.0)))
    keys = (1, 2, 3, 4)
    made.cluster.engines["p0"].cached.insert(Marks.of(keys))
    made.cluster.report(report("p0", tok=5000, compute_tokens_per_s=1000.0), 0.0)
    made.cluster.report(report("p1", compute_tokens_per_s=1000.0), 0.0)
    made.submit(request("a", 600, keys=keys))
    assert list(made.run(0.0)) == []
    made.cluster.engines["p0"].pending_new_tokens = 5000
    made.cluster.engines["p1"].cached.insert(Marks.of(keys))
    assert assigned(list(made.run(0.1))) == [("a", "p1", "d0")]
    assert made.n_rebalanced == 1


# ---- room on decode engines


def full(made: object, seq: int = 1) -> None:
    """No device memory left on d0."""
    made.cluster.report(report("d0", seq=seq, tok=10, free_kv_tokens=50), 0.0)  # type: ignore[attr-defined]


def test_one_without_room_is_overtaken_by_those_that_fit() -> None:
    made = scheduler(1, 1)
    full(made)
    made.submit(request("large", 100))
    made.submit(request("small", 20))
    assert [name for name, _, _ in assigned(list(made.run(0.0)))] == ["small"]
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=500), 1.0)
    assert [name for name, _, _ in assigned(list(made.run(1.0)))] == ["large"]


def test_one_overtaken_for_too_long_holds_up_the_others() -> None:
    made = scheduler(1, 1)
    full(made)
    made.submit(request("large", 100))
    list(made.run(0.0))
    late_s = ROOM_PATIENCE_S + 1.0
    made.cluster.report(report("p0"), late_s)
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=50), late_s)
    made.submit(request("small", 20))
    assert list(made.run(late_s)) == []
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=500), late_s)
    assert [name for name, _, _ in assigned(list(made.run(late_s)))] == ["large", "small"]


def test_one_that_waits_for_room_is_held_still_while_its_prefill_engine_is_overloaded() -> None:
    made = scheduler(1, 1, Fixed())
    full(made)
    made.submit(request("p0-a", 100))
    assert list(made.run(0.0)) == []
    made.cluster.report(report("p0", tok=5000), 1.0)
    made.cluster.report(report("d0"), 1.0)
    assert list(made.run(1.0)) == []
    made.cluster.report(report("p0"), 2.0)
    assert assigned(list(made.run(2.0))) == [("p0-a", "p0", "d0")]


def test_one_overtaken_for_too_long_holds_up_those_held_for_an_engine_too() -> None:
    made = scheduler(2, 1, Fixed())
    full(made)
    made.submit(request("p1-large", 100))
    list(made.run(0.0))
    made.cluster.report(report("p0", tok=5000), 0.0)
    made.submit(request("p0-small", 20))
    list(made.run(0.0))
    late_s = ROOM_PATIENCE_S + 1.0
    for engine_id in ("p0", "p1"):
        made.cluster.report(report(engine_id), late_s)
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=50), late_s)
    assert list(made.run(late_s)) == []


def test_one_that_waits_for_its_prefill_engine_rather_than_for_room_holds_up_nobody() -> None:
    made = scheduler(2, 1, Fixed())
    full(made)
    made.submit(request("p0-a", 100))
    list(made.run(0.0))
    late_s = ROOM_PATIENCE_S + 1.0
    made.cluster.report(report("p0", tok=5000), late_s)
    for engine_id in ("p1", "d0"):
        made.cluster.report(report(engine_id), late_s)
    made.submit(request("p1-b", 100))
    assert [name for name, _, _ in assigned(list(made.run(late_s)))] == ["p1-b"]


def test_those_who_gave_up_waiting_for_room_hold_up_nobody() -> None:
    made = scheduler(1, 1)
    full(made)
    for index in range(3 * ROOM_LOOKAHEAD):
        made.submit(request(f"r{index}", 100))
    list(made.run(0.0))
    for index in range(3 * ROOM_LOOKAHEAD):
        made.withdraw(f"r{index}")
    late_s = ROOM_PATIENCE_S + 1.0
    made.cluster.report(report("p0"), late_s)
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=50), late_s)
    made.submit(request("small", 20))
    assert [name for name, _, _ in assigned(list(made.run(late_s)))] == ["small"]


def test_a_caller_that_stops_early_loses_nobody() -> None:
    made = scheduler(1, 1)
    full(made)
    made.submit(request("large", 500))
    made.submit(request("medium", 100))
    list(made.run(0.0))
    made.cluster.report(report("d0", seq=1, tok=10, free_kv_tokens=150), 1.0)
    run = made.run(1.0)
    assert assigned([next(run)]) == [("medium", "p0", "d0")]
    run.close()
    made.cluster.report(report("d0"), 2.0)
    assert [name for name, _, _ in assigned(list(made.run(2.0)))] == ["large"]


@pytest.mark.parametrize(("tokens", "engine_id"), [(8, "d@1"), (110, "d@0")])
def test_z_counts_the_request_that_is_placed(tokens: int, engine_id: str) -> None:
    """Z = 1.05 * (8 + 201) / 2 = 109.7 has room for 8 more on both engines; 1.05 * (110 + 201) / 2 for 110 more on neither."""
    made = scheduler(1, 0)
    for rank, (seq, tok) in enumerate([(5, 100), (1, 101)]):
        made.set_available(joined(made.cluster, f"d@{rank}", "decode", seq=seq, tok=tok), True)
    made.submit(request("r", tokens))
    assert assigned(list(made.run(0.0))) == [("r", "p0", engine_id)]


def test_z_counts_those_that_wait_for_room() -> None:
    """Z = 1.05 * (120 + 1030) / 2 = 604 makes both engines normal; without `large` only the first is."""
    made = scheduler(1, 0)
    for rank, (seq, tok) in enumerate([(9, 500), (1, 530)]):
        made.set_available(joined(made.cluster, f"d@{rank}", "decode", seq=seq, tok=tok, free_kv_tokens=60), True)
    made.submit(request("large", 300))
    made.submit(request("small", 20))
    assert assigned(list(made.run(0.0))) == [("small", "p0", "d@1")]


def test_one_that_waits_for_room_can_be_withdrawn() -> None:
    made = scheduler(1, 1)
    full(made)
    made.submit(request("large", 100))
    list(made.run(0.0))
    assert made.withdraw("large")
    assert made.n_waiting == 0
    made.cluster.report(report("d0"), 1.0)
    assert list(made.run(1.0)) == []


def test_hits_are_expected_where_the_prefix_went_before() -> None:
    made = scheduler(1, 1, MinTtft())
    keys = tuple(range(1, 9))
    made.submit(request("a", 8 * 128 + 50, keys=keys))
    made.submit(request("b", 8 * 128 + 50, keys=(*keys[:4], 99, 98, 97, 96)))
    first, second = made.run(0.0)
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    assert (first.expected_hit_tokens, second.expected_hit_tokens) == (0, 4 * 128)

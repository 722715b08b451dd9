"""DualPath scheduling: the classes of Algorithm 1, the decode engine's room, the shorter read queue."""

from collections import Counter
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.dualpath import DualPath, choose_decode, choose_prefill
from sglang_dualpath.router.scheduling.engine import EngineLoad, RequestFacts

from test.unit.router.scheduling.loads import fleets, overloaded, requests, short_queue

A_REQUEST = RequestFacts(prompt_tokens=8)


def load(url: str, **fields: object) -> EngineLoad:
    """An idle engine with both paths, apart from `fields`."""
    idle = EngineLoad(url, "prefill", seq=0, tok=0, read_q_tokens=0, dual=True)
    return replace(idle, **fields)


# ---- the prefill engine


@given(fleets("prefill"))
def test_an_overloaded_prefill_engine_gets_nothing(prefill: list[EngineLoad]) -> None:
    chosen = choose_prefill(prefill)
    assert (chosen is None) == all(overloaded(engine) for engine in prefill)
    assert chosen is None or not overloaded(chosen)


@given(fleets("prefill"))
def test_short_read_queues_come_before_long_ones(prefill: list[EngineLoad]) -> None:
    chosen = choose_prefill(prefill)
    assume(chosen is not None)
    assert chosen is not None
    any_short = any(short_queue(engine) and not overloaded(engine) for engine in prefill)
    assert short_queue(chosen) == any_short


@given(fleets("prefill"))
def test_within_a_class_the_least_loaded_is_chosen(prefill: list[EngineLoad]) -> None:
    chosen = choose_prefill(prefill)
    assume(chosen is not None)
    assert chosen is not None
    peers = [e for e in prefill if not overloaded(e) and short_queue(e) == short_queue(chosen)]
    assert (chosen.tok, chosen.seq) == min((e.tok, e.seq) for e in peers)


@given(fleets("prefill"), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_engines(prefill: list[EngineLoad], random: st.DataObject) -> None:
    shuffled = list(prefill)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_prefill(shuffled) == choose_prefill(prefill)
    assert choose_decode(A_REQUEST, shuffled) == choose_decode(A_REQUEST, prefill)


def test_a_load_of_exactly_beta_is_not_yet_overload() -> None:
    assert choose_prefill([load("a", tok=100, beta_tokens=100)]) is not None
    assert choose_prefill([load("a", tok=101, beta_tokens=100)]) is None


def test_a_read_queue_of_exactly_alpha_is_still_short() -> None:
    at_alpha = load("a", read_q_tokens=50, alpha_tokens=50, tok=9)
    beyond = load("b", read_q_tokens=51, alpha_tokens=50, tok=0)
    assert choose_prefill([beyond, at_alpha]) == at_alpha


def test_a_long_queue_is_taken_when_all_others_are_overloaded() -> None:
    long_queue = load("a", read_q_tokens=99, alpha_tokens=50, tok=9, beta_tokens=10)
    busy = load("b", tok=11, beta_tokens=10)
    assert choose_prefill([busy, long_queue]) == long_queue


# ---- the decode engine


@given(requests, fleets("decode"))
def test_a_decode_engine_with_room_for_the_prompt_is_preferred(request: RequestFacts, decode: list[EngineLoad]) -> None:
    def roomy(engine: EngineLoad) -> bool:
        return engine.free_buffer_tokens is None or engine.free_buffer_tokens >= request.prompt_tokens

    chosen = choose_decode(request, decode)
    assert roomy(chosen) == any(roomy(engine) for engine in decode)
    assert (chosen.tok, chosen.seq) == min((e.tok, e.seq) for e in decode if roomy(e) == roomy(chosen))


# ---- the pair and the read side


@given(requests, fleets("prefill"), fleets("decode"))
def test_an_assignment_names_engines_that_were_offered(
    request: RequestFacts, prefill: list[EngineLoad], decode: list[EngineLoad]
) -> None:
    assignment = DualPath().assign(request, prefill, decode)
    if assignment is None:
        assert all(overloaded(engine) for engine in prefill)
    else:
        assert assignment.prefill_url in {engine.url for engine in prefill}
        assert assignment.decode_url in {engine.url for engine in decode}


@given(requests, fleets("prefill"), fleets("decode"))
def test_the_side_with_the_shorter_queue_reads_where_both_can(
    request: RequestFacts, prefill: list[EngineLoad], decode: list[EngineLoad]
) -> None:
    assignment = DualPath().assign(request, prefill, decode)
    assume(assignment is not None)
    assert assignment is not None
    ours = next(e for e in prefill if e.url == assignment.prefill_url)
    theirs = next(e for e in decode if e.url == assignment.decode_url)
    if not (ours.dual and theirs.dual):
        assert assignment.read_side == "prefill"
    elif ours.read_q_tokens != theirs.read_q_tokens:
        shorter = "prefill" if ours.read_q_tokens < theirs.read_q_tokens else "decode"
        assert assignment.read_side == shorter


def test_equal_queues_take_turns() -> None:
    policy = DualPath()
    sides = [policy.assign(A_REQUEST, [load("p")], [load("d")]) for _ in range(10)]
    assert Counter(side.read_side for side in sides if side is not None) == {"prefill": 5, "decode": 5}


def test_no_request_goes_to_an_engine_without_decode_reads_for_a_decode_read() -> None:
    for dual_prefill, dual_decode in ((True, False), (False, True), (False, False)):
        prefill = [load("p", dual=dual_prefill, read_q_tokens=99)]
        assignment = DualPath().assign(A_REQUEST, prefill, [load("d", dual=dual_decode)])
        assert assignment is not None and assignment.read_side == "prefill"

"""Request bodies: what the router adds, and that it leaves all else alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
from sglang_dualpath.router.body import BodyError, batch_size, facts_of, new_room, prepare
from sglang_dualpath.router.scheduling.engine import Assignment
from sglang_dualpath.telemetry.plan import ACTION_TYPE, PLAN_VERSION, ReadPlan, from_kv_hints

ASSIGNMENT = Assignment("http://10.0.0.1:30000", "http://10.0.0.2:30000", "decode")
ADDED = {"bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_hints", "rid"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
field_names = st.text(max_size=12).filter(lambda name: name not in ADDED | {"text", "prompt", "input_ids"})
bodies = st.dictionaries(field_names, json_values, max_size=6)


def prepared(body: dict[str, Any], request_id: str = "r1") -> dict[str, Any]:
    """What both engines get."""
    return prepare(body, ASSIGNMENT, 8998, request_id).body


@given(bodies)
def test_every_field_of_the_client_is_left_as_it_was(body: dict[str, Any]) -> None:
    before = dict(body)
    sent = prepared(body)
    assert body == before
    assert {name: value for name, value in sent.items() if name not in ADDED} == body


@given(bodies)
def test_the_plan_rides_in_the_kv_hints(body: dict[str, Any]) -> None:
    assert from_kv_hints(prepared(body)["kv_hints"]) == ReadPlan(read_side="decode", plan_id="r1")


def test_one_prompt_gets_one_room_at_the_prefill_engines_bootstrap_server() -> None:
    sent = prepared({"text": "hello"})
    assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("10.0.0.1", 8998)
    assert isinstance(sent["bootstrap_room"], int)


@pytest.mark.parametrize(
    "body",
    [
        {"text": ["a", "b", "c"]},
        {"prompt": ["a", "b", "c"]},
        {"input_ids": [[1, 2], [3], [4, 5, 6]]},
        {"prompt": [[1, 2], [3], [4]]},
    ],
)
def test_every_prompt_of_a_batch_gets_a_room_of_its_own(body: dict[str, Any]) -> None:
    sent = prepared(body)
    assert sent["bootstrap_host"] == ["10.0.0.1"] * 3
    assert sent["bootstrap_port"] == [8998] * 3
    assert len(set(sent["bootstrap_room"])) == 3


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"text": "a"}, None),
        ({"text": ["a"]}, 1),
        ({"prompt": "a"}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, 1),
        ({"input_ids": [1, 2]}, None),
        ({"input_ids": [[1, 2]]}, 1),
        ({"input_ids": []}, None),
        ({"text": "a", "input_ids": [[1], [2]]}, None),
        ({"messages": [{"role": "user", "content": "a"}] * 3}, None),
        ({}, None),
    ],
)
def test_a_batch_is_what_upstream_takes_for_one(body: dict[str, Any], size: int | None) -> None:
    assert batch_size(body) == size


def test_rooms_do_not_repeat_and_fit_a_signed_64_bit_number() -> None:
    rooms = {new_room() for _ in range(1000)}
    assert len(rooms) == 1000
    assert all(0 <= room < 2**63 for room in rooms)


# ---- request ids


def test_two_requests_with_one_client_id_get_different_rids() -> None:
    """Upstream refuses an id in use, and clients put one correlation id on many requests."""
    first, second = prepared({"text": "a"}, "session-7"), prepared({"text": "a"}, "session-7")
    assert first["rid"] != second["rid"]
    assert first["rid"].startswith("session-7")


def test_no_rid_is_the_beginning_of_another() -> None:
    """Upstream's scheduler aborts every request whose id begins with the aborted one."""
    short, long = prepared({"text": "a"}, "r")["rid"], prepared({"text": "a"}, "r1")["rid"]
    assert not long.startswith(short)


def test_every_prompt_of_a_batch_can_be_aborted_by_its_own_rid() -> None:
    made = prepare({"text": ["a", "b"]}, ASSIGNMENT, 8998, "r1")
    assert len(set(made.rids)) == 2
    assert made.body["rid"] == list(made.rids)


@pytest.mark.parametrize(
    ("body", "rids"),
    [
        ({"text": "a", "rid": "mine"}, ("mine",)),
        ({"text": ["a", "b"], "rid": ["x", "y"]}, ("x", "y")),
        ({"text": ["a", "b"], "rid": "mine"}, ("mine_0", "mine_1")),
    ],
)
def test_a_rid_of_the_client_is_kept(body: dict[str, Any], rids: tuple[str, ...]) -> None:
    made = prepare(body, ASSIGNMENT, 8998, "r1")
    assert made.rids == rids
    assert made.body["rid"] == body["rid"]


# ---- hints of the client


FOREIGN = {"action_id": "f", "action_type": "other.system", "action_version": "7", "payload": {"x": 1}}


def test_actions_of_others_stay_beside_the_plan() -> None:
    hints = {"protocol_version": "1", "message_id": "m", "actions": [FOREIGN], "extra": 5}
    sent = prepared({"text": "a", "kv_hints": hints})["kv_hints"]
    assert FOREIGN in sent["actions"]
    assert (sent["message_id"], sent["extra"]) == ("m", 5)
    assert from_kv_hints(sent) == ReadPlan(read_side="decode", plan_id="r1")


def test_a_plan_that_comes_with_the_request_holds() -> None:
    theirs = prepare({"text": "a"}, Assignment("http://a:1", "http://b:1", "prefill"), 8998, "theirs").kv_hints
    body = {"text": "a", "kv_hints": theirs}
    assert facts_of(body).read_side == "prefill"
    assert prepared(body)["kv_hints"] == theirs


def test_a_request_without_a_plan_leaves_the_read_side_to_the_policy() -> None:
    assert facts_of({"text": "a"}).read_side is None
    assert facts_of({"text": "a", "kv_hints": {"actions": [FOREIGN]}}).read_side is None


def test_a_plan_that_is_malformed_is_refused_by_name() -> None:
    plan = {"action_id": "a", "action_type": ACTION_TYPE, "action_version": PLAN_VERSION, "payload": {"read_side": "x"}}
    with pytest.raises(BodyError, match="read_side"):
        prepared({"text": "a", "kv_hints": {"protocol_version": "1", "message_id": "m", "actions": [plan]}})


def test_an_empty_envelope_is_none() -> None:
    sent = prepared({"text": "a", "kv_hints": {}})["kv_hints"]
    assert decode_kv_hints_envelope(sent).message_id == "r1"


@pytest.mark.parametrize("hints", ["decode", 5, [], {"actions": "none"}, {"actions": None}])
def test_hints_that_cannot_be_extended_are_refused_by_name(hints: Any) -> None:
    with pytest.raises(BodyError, match="kv_hints"):
        prepared({"text": "a", "kv_hints": hints})


@pytest.mark.parametrize("rid", [5, {}, [1, 2], ["only one"]])
def test_a_rid_that_cannot_name_the_requests_is_refused_by_name(rid: Any) -> None:
    with pytest.raises(BodyError, match="rid"):
        prepared({"text": ["a", "b"], "rid": rid})


# ---- the prompt's length


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"input_ids": [1] * 100}, 100),
        ({"input_ids": [[1] * 30, [1] * 12]}, 42),
        ({"prompt": [1] * 70}, 70),
        ({"prompt": [[1] * 30, [1] * 12]}, 42),
        ({"text": "x" * 400}, 100),
        ({"text": ["x" * 400, "y" * 40]}, 110),
        ({"prompt": "x" * 400}, 100),
        ({}, 1),
        ({"text": ""}, 1),
    ],
)
def test_token_ids_are_counted_and_texts_estimated(body: dict[str, Any], tokens: int) -> None:
    assert facts_of(body).prompt_tokens == tokens


def test_the_length_of_a_chat_grows_with_its_messages() -> None:
    turn = {"role": "user", "content": "x" * 4000}
    one, ten = facts_of({"messages": [turn]}), facts_of({"messages": [turn] * 10})
    assert 1000 <= one.prompt_tokens < 1100
    assert ten.prompt_tokens > 9 * one.prompt_tokens


@given(json_values, json_values, json_values)
def test_no_prompt_of_any_shape_is_too_much_for_the_estimate(a: Any, b: Any, c: Any) -> None:
    assert facts_of({"text": a, "prompt": b, "messages": c}).prompt_tokens >= 1
    assert facts_of({"input_ids": a}).prompt_tokens >= 1

"""What both engines get: the client's fields as they were, and the router's own in front."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
from sglang_dualpath.router.prompt.body import ADDED_FIELDS, BodyError, read
from sglang_dualpath.router.prompt.prepared import PreparedBody, Rendezvous, new_room, prepare
from sglang_dualpath.telemetry.plan import ACTION_TYPE, PLAN_VERSION, ReadPlan, from_kv_hints, to_kv_hints

PLACE = Rendezvous("http://10.0.0.1:30000", 8998)
PLAN = ReadPlan(read_side="decode", plan_id="r1")
FOREIGN = {"action_id": "f", "action_type": "other.system", "action_version": "7", "payload": {"x": 1}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
field_names = st.text(max_size=12).filter(lambda name: name not in {*ADDED_FIELDS, "text", "prompt", "input_ids"})
bodies = st.dictionaries(field_names, json_values, max_size=6)


def made(body: dict[str, Any], place: Rendezvous = PLACE, plan: ReadPlan = PLAN) -> PreparedBody:
    """What is made of a client's body."""
    return prepare(read(json.dumps(body).encode()), place, plan)


def sent(body: dict[str, Any], plan: ReadPlan = PLAN) -> dict[str, Any]:
    """What both engines get, parsed."""
    prepared = made(body, plan=plan)
    assert prepared.prefill_data == prepared.decode_data
    return json.loads(prepared.decode_data)


@given(bodies)
def test_every_field_of_the_client_is_left_as_it_was(body: dict[str, Any]) -> None:
    assert {name: value for name, value in sent(body).items() if name not in ADDED_FIELDS} == body


@given(bodies)
def test_what_the_client_wrote_is_sent_byte_by_byte(body: dict[str, Any]) -> None:
    data = json.dumps(body, indent=2).encode()
    assert prepare(read(b"\n " + data), PLACE, PLAN).decode_data.endswith(data[1:].lstrip())


@given(bodies)
def test_the_plan_rides_in_the_kv_hints(body: dict[str, Any]) -> None:
    assert from_kv_hints(sent(body)["kv_hints"]) == PLAN


def test_one_prompt_gets_one_room_at_the_prefill_engines_bootstrap_server() -> None:
    got = sent({"text": "hello"})
    assert (got["bootstrap_host"], got["bootstrap_port"]) == ("10.0.0.1", 8998)
    assert isinstance(got["bootstrap_room"], int)


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
    got = sent(body)
    assert got["bootstrap_host"] == ["10.0.0.1"] * 3
    assert got["bootstrap_port"] == [8998] * 3
    assert len(set(got["bootstrap_room"])) == 3


def test_rooms_do_not_repeat_and_fit_a_signed_64_bit_number() -> None:
    rooms = {new_room() for _ in range(1000)}
    assert len(rooms) == 1000
    assert all(0 <= room < 2**63 for room in rooms)


@pytest.mark.parametrize("name", ["bootstrap_room", "boot\\u0073trap_room"])
def test_a_client_cannot_choose_the_rendezvous(name: str) -> None:
    """Its field comes after the router's in the text, and the last one of a name counts."""
    data = b'{"text": "a", "%s": 5}' % name.encode()
    assert json.loads(prepare(read(data), PLACE, PLAN).decode_data)["bootstrap_room"] != 5


def test_each_engine_is_told_its_rank_and_the_decode_engine_that_of_the_prefill_engine() -> None:
    prepared = made({"text": "a", "routed_dp_rank": 9}, Rendezvous("http://a:1", 8998, prefill_rank=2, decode_rank=1))
    prefill, decode = json.loads(prepared.prefill_data), json.loads(prepared.decode_data)
    assert prefill["routed_dp_rank"] == 2
    assert (decode["routed_dp_rank"], decode["disagg_prefill_dp_rank"]) == (1, 2)
    assert prefill["bootstrap_room"] == decode["bootstrap_room"]


# ---- request ids


def test_two_requests_with_one_client_id_get_different_rids() -> None:
    """Upstream refuses an id in use, and clients put one correlation id on many requests."""
    first, second = sent({"text": "a"}), sent({"text": "a"})
    assert first["rid"] != second["rid"]
    assert first["rid"].startswith("r1")


def test_no_rid_is_the_beginning_of_another() -> None:
    """Upstream's scheduler aborts every request whose id begins with the aborted one."""
    short = sent({"text": "a"}, ReadPlan(read_side="prefill", plan_id="r"))["rid"]
    assert not sent({"text": "a"})["rid"].startswith(short)


def test_every_prompt_of_a_batch_can_be_aborted_by_its_own_rid() -> None:
    prepared = made({"text": ["a", "b"]})
    assert len(set(prepared.rids)) == 2
    assert json.loads(prepared.decode_data)["rid"] == list(prepared.rids)


@pytest.mark.parametrize(
    ("body", "rids"),
    [
        ({"text": "a", "rid": "mine"}, ("mine",)),
        ({"text": ["a", "b"], "rid": ["x", "y"]}, ("x", "y")),
        ({"text": ["a", "b"], "rid": "mine"}, ("mine_0", "mine_1")),
    ],
)
def test_a_rid_of_the_client_is_kept(body: dict[str, Any], rids: tuple[str, ...]) -> None:
    prepared = made(body)
    assert prepared.rids == rids
    assert json.loads(prepared.decode_data)["rid"] == body["rid"]


@pytest.mark.parametrize("rid", [5, ["a"], ["a", "b", "c"], ["a", 5], {}])
def test_a_rid_that_does_not_fit_its_prompts_is_refused_by_name(rid: Any) -> None:
    with pytest.raises(BodyError, match="rid"):
        made({"text": ["a", "b"], "rid": rid})


# ---- hints of the client


def test_actions_of_others_stay_beside_the_plan() -> None:
    hints = {"protocol_version": "1", "message_id": "m", "actions": [FOREIGN], "extra": 5}
    got = sent({"text": "a", "kv_hints": hints})["kv_hints"]
    assert FOREIGN in got["actions"]
    assert (got["message_id"], got["extra"]) == ("m", 5)
    assert from_kv_hints(got) == PLAN


def test_a_plan_that_comes_with_the_request_holds() -> None:
    theirs = to_kv_hints(ReadPlan(read_side="prefill", plan_id="theirs"))
    assert sent({"text": "a", "kv_hints": theirs})["kv_hints"] == theirs


@pytest.mark.parametrize("payload", [None, {}, {"read_side": "both", "plan_id": "p"}, {"read_side": "decode"}])
def test_a_plan_that_says_nothing_usable_is_refused_by_name(payload: Any) -> None:
    action = {"action_id": "p", "action_type": ACTION_TYPE, "action_version": PLAN_VERSION, "payload": payload}
    with pytest.raises(BodyError, match="kv_hints"):
        made({"text": "a", "kv_hints": {"actions": [action]}})


def test_upstream_reads_the_envelope() -> None:
    split = ReadPlan(read_side="split", plan_id="p", decode_share=0.25)
    envelope = decode_kv_hints_envelope(sent({"text": "a"}, split)["kv_hints"])
    assert from_kv_hints(envelope) == split

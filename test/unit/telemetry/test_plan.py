"""Read plans: they ride in upstream's envelope, and whatever else rides there is left alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
from sglang_dualpath.telemetry.plan import ACTION_TYPE, PLAN_VERSION, ReadPlan, from_kv_hints, to_action, to_kv_hints

plans = st.builds(ReadPlan, read_side=st.sampled_from(["prefill", "decode"]), plan_id=st.text(max_size=64))

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)

A_PLAN = ReadPlan(read_side="decode", plan_id="p1")
FOREIGN_ACTION = {"action_id": "f", "action_type": "other.system", "action_version": "7", "payload": {"read_side": 3}}


def envelope(*actions: Any) -> dict[str, Any]:
    """An envelope with these actions."""
    return {"protocol_version": "1", "message_id": "m", "actions": list(actions)}


@given(plans)
def test_a_plan_comes_back_from_its_envelope(plan: ReadPlan) -> None:
    assert from_kv_hints(to_kv_hints(plan)) == plan


@given(plans)
def test_the_envelope_is_one_that_upstream_takes(plan: ReadPlan) -> None:
    upstream = decode_kv_hints_envelope(to_kv_hints(plan))
    assert [action.action_type for action in upstream.actions] == [ACTION_TYPE]
    assert from_kv_hints(upstream) == plan


@given(plans)
def test_the_envelope_survives_json(plan: ReadPlan) -> None:
    assert from_kv_hints(msgspec.json.decode(msgspec.json.encode(to_kv_hints(plan)))) == plan


def test_a_request_without_hints_has_no_plan() -> None:
    assert from_kv_hints(None) is None
    assert from_kv_hints(envelope()) is None


def test_the_plan_is_found_among_actions_of_others() -> None:
    assert from_kv_hints(envelope(FOREIGN_ACTION, to_action(A_PLAN), FOREIGN_ACTION)) == A_PLAN


def test_only_foreign_actions_are_no_plan() -> None:
    assert from_kv_hints(envelope(FOREIGN_ACTION)) is None


def test_a_plan_of_another_version_is_no_plan_of_ours() -> None:
    assert from_kv_hints(envelope({**to_action(A_PLAN), "action_version": PLAN_VERSION + "0"})) is None


@pytest.mark.parametrize(
    "payload", [None, [], "decode", {}, {"read_side": "both", "plan_id": "p"}, {"read_side": "decode", "plan_id": 5}]
)
def test_a_payload_that_does_not_fit_is_no_plan(payload: Any) -> None:
    assert from_kv_hints(envelope({**to_action(A_PLAN), "payload": payload})) is None


@given(anything)
def test_anything_in_place_of_an_envelope_is_no_plan(hints: Any) -> None:
    assert from_kv_hints(hints) is None


@given(anything)
def test_anything_in_place_of_the_actions_is_no_plan(actions: Any) -> None:
    assert from_kv_hints({"protocol_version": "1", "message_id": "m", "actions": actions}) is None


@given(st.lists(anything, max_size=4))
def test_the_plan_is_found_beside_anything(others: list[Any]) -> None:
    assert from_kv_hints(envelope(*others, to_action(A_PLAN))) == A_PLAN

"""The router's read plan, riding on the request itself in upstream's `kv_hints` (upstream `managers/kv_hints.py`)."""

from typing import Any, Literal

import msgspec

ACTION_TYPE = "dualpath.read_plan"
PLAN_VERSION = "1"

PLAN_HEADER = "x-dualpath-kv-hints"
"""Carries the envelope as JSON to the OpenAI endpoints, whose bodies upstream strips of it."""


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which side reads a request's cached KV."""

    read_side: Literal["prefill", "decode"]
    plan_id: str


def to_kv_hints(plan: ReadPlan) -> dict[str, Any]:
    """An upstream `kv_hints` envelope that holds the plan as its one action."""
    return {"protocol_version": "1", "message_id": plan.plan_id, "actions": [to_action(plan)]}


def to_action(plan: ReadPlan) -> dict[str, Any]:
    """The plan as an action, to stand in an envelope beside others."""
    return {
        "action_id": plan.plan_id,
        "action_type": ACTION_TYPE,
        "action_version": PLAN_VERSION,
        "payload": {"read_side": plan.read_side, "plan_id": plan.plan_id},
    }


def from_kv_hints(hints: Any) -> ReadPlan | None:
    """The plan in an envelope (upstream's struct or a plain dict); None without one this version understands."""
    if hints is None:
        return None
    envelope = msgspec.to_builtins(hints)
    actions = envelope.get("actions") if isinstance(envelope, dict) else None
    for action in actions if isinstance(actions, list) else []:
        if not isinstance(action, dict):
            continue
        if action.get("action_type") == ACTION_TYPE and action.get("action_version") == PLAN_VERSION:
            try:
                return msgspec.convert(action.get("payload"), ReadPlan)
            except msgspec.ValidationError:
                return None
    return None

"""The router's read plan, riding on the request itself in upstream's `kv_hints` (upstream `managers/kv_hints.py`)."""

from typing import Annotated, Any, Literal

import msgspec

ACTION_TYPE = "dualpath.read_plan"
PLAN_VERSION = "1"

PLAN_HEADER = "x-dualpath-kv-hints"
"""Carries the envelope as JSON to the OpenAI endpoints, whose bodies upstream strips of it."""


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which side reads a request's cached KV, or how they share it."""

    read_side: Literal["prefill", "decode", "split"]
    plan_id: str
    decode_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Of the cached blocks, what the decode side reads when the plan is to split them."""

    @property
    def share(self) -> float:
        """What the decode side reads under this plan, 0 to 1."""
        return {"prefill": 0.0, "decode": 1.0, "split": self.decode_share}[self.read_side]


def plan_of_share(decode_share: float, plan_id: str) -> ReadPlan:
    """The plan in which the decode side reads `decode_share` of the cached blocks."""
    if decode_share <= 0:
        return ReadPlan(read_side="prefill", plan_id=plan_id)
    if decode_share >= 1:
        return ReadPlan(read_side="decode", plan_id=plan_id)
    return ReadPlan(read_side="split", plan_id=plan_id, decode_share=decode_share)


def to_kv_hints(plan: ReadPlan) -> dict[str, Any]:
    """An upstream `kv_hints` envelope that holds the plan as its one action."""
    return {"protocol_version": "1", "message_id": plan.plan_id, "actions": [to_action(plan)]}


def to_action(plan: ReadPlan) -> dict[str, Any]:
    """The plan as an action, to stand in an envelope beside others."""
    return {
        "action_id": plan.plan_id,
        "action_type": ACTION_TYPE,
        "action_version": PLAN_VERSION,
        "payload": msgspec.to_builtins(plan),
    }


def from_kv_hints(hints: Any) -> ReadPlan | None:
    """The plan in an envelope (upstream's struct or a plain dict); None without one this version understands."""
    if hints is None:
        return None
    envelope = msgspec.to_builtins(hints)
    actions = envelope.get("actions") if isinstance(envelope, dict) else None
    for action in actions if isinstance(actions, list) else []:
        if is_plan(action):
            try:
                return msgspec.convert(action.get("payload"), ReadPlan)
            except msgspec.ValidationError:
                return None
    return None


def is_plan(action: Any) -> bool:
    """Whether an action of an envelope is a plan of this version, usable or not."""
    kind = (ACTION_TYPE, PLAN_VERSION)
    return isinstance(action, dict) and (action.get("action_type"), action.get("action_version")) == kind

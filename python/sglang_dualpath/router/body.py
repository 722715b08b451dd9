"""The request body: what the router reads of it, and what it adds before both engines get it. Pure."""

import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sglang_dualpath.router.scheduling.engine import Assignment, RequestFacts
from sglang_dualpath.telemetry.plan import (
    ACTION_TYPE,
    PLAN_VERSION,
    ReadPlan,
    from_kv_hints,
    to_action,
    to_kv_hints,
)

CHARACTERS_PER_TOKEN = 4
"""For texts, which the router does not tokenize."""


class BodyError(ValueError):
    """A body the router cannot send on; the message is for the client."""


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """What goes to both engines, and the ids to abort it by: one for each prompt."""

    body: dict[str, Any]
    kv_hints: dict[str, Any]
    rids: tuple[str, ...]


def batch_size(body: dict[str, Any]) -> int | None:
    """How many prompts a body holds; None for a single one (as upstream tells them apart)."""
    for field in ("text", "prompt"):
        value = body.get(field)
        if isinstance(value, str):
            return None
        if isinstance(value, list):
            return None if field == "prompt" and value and isinstance(value[0], int) else len(value)
    ids = body.get("input_ids")
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        return len(ids)
    return None


def facts_of(body: dict[str, Any]) -> RequestFacts:
    """The prompt's length, exact for token ids and estimated for text, and the read side of a plan that it brings."""
    tokens = max(1, _tokens_in(body.get("input_ids")) or _tokens_in_text(body))
    theirs = from_kv_hints(body.get("kv_hints"))
    return RequestFacts(tokens, None if theirs is None else theirs.read_side)


def prepare(body: dict[str, Any], assignment: Assignment, bootstrap_port: int | None, request_id: str) -> PreparedBody:
    """A copy of `body` with the rendezvous of the two engines, the read plan and an id; all else as the client sent it."""
    host = urlsplit(assignment.prefill_url).hostname or ""
    size = batch_size(body)
    rendezvous: dict[str, Any] = {
        "bootstrap_host": host,
        "bootstrap_port": bootstrap_port,
        "bootstrap_room": new_room(),
    }
    if size is not None:
        rendezvous = {
            "bootstrap_host": [host] * size,
            "bootstrap_port": [bootstrap_port] * size,
            "bootstrap_room": [new_room() for _ in range(size)],
        }
    plan = ReadPlan(read_side=assignment.read_side, plan_id=request_id)
    hints = _with_plan(body.get("kv_hints"), plan)
    prepared = {**body, **rendezvous, "kv_hints": hints}
    if body.get("rid") is not None:
        return PreparedBody(prepared, hints, _rids_of(body["rid"], size))
    # Of its own for each attempt: an id in use is refused, and an aborted one is in use for a while.
    rid = f"{request_id}-{secrets.token_hex(8)}"
    rids = _rids_of(rid, size)
    prepared["rid"] = rid if size is None else list(rids)
    return PreparedBody(prepared, hints, rids)


def new_room() -> int:
    """A rendezvous number: 63 random bits."""
    return secrets.randbits(63)


def _rids_of(rid: Any, size: int | None) -> tuple[str, ...]:
    """The engines' names for a body's requests: upstream numbers those of a batch that has one id."""
    if isinstance(rid, str):
        return (rid,) if size is None else tuple(f"{rid}_{i}" for i in range(size))
    if not isinstance(rid, list) or len(rid) != size or not all(isinstance(one, str) for one in rid):
        raise BodyError("rid must be a string, or for a batch a list with one string for each prompt")
    return tuple(rid)


def _with_plan(hints: Any, plan: ReadPlan) -> dict[str, Any]:
    """The client's envelope with the plan in it, unless it brings one; upstream takes an empty envelope for none."""
    if hints is None or hints == {}:
        return to_kv_hints(plan)
    if not isinstance(hints, dict) or not isinstance(hints.get("actions", []), list):
        raise BodyError("kv_hints must be an object with a list of actions")
    actions = hints.get("actions", [])
    if any(_is_plan(action) for action in actions):
        if from_kv_hints(hints) is None:
            raise BodyError(f"kv_hints: the payload of {ACTION_TYPE} needs plan_id and read_side: prefill or decode")
        return hints
    return {**hints, "actions": [*actions, to_action(plan)]}


def _is_plan(action: Any) -> bool:
    kind = (ACTION_TYPE, PLAN_VERSION)
    return isinstance(action, dict) and (action.get("action_type"), action.get("action_version")) == kind


def _tokens_in(ids: Any) -> int:
    if not isinstance(ids, list):
        return 0
    return sum(len(part) if isinstance(part, list) else 1 for part in ids)


def _tokens_in_text(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int | list):
        return _tokens_in(prompt)
    return _characters(body.get("text") or prompt or body.get("messages")) // CHARACTERS_PER_TOKEN


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(_characters(part) for part in value)
    if isinstance(value, dict):
        return sum(_characters(part) for part in value.values())
    return 0

"""The request body: what the router reads of it, and what it adds before both engines get it. Pure."""

import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sglang_dualpath.router.scheduling.engine import Assignment, RequestFacts
from sglang_dualpath.telemetry.plan import ReadPlan, to_action, to_kv_hints

CHARACTERS_PER_TOKEN = 4
"""For texts, which the router does not tokenize."""


class BodyError(ValueError):
    """A body the router cannot send on; the message is for the client."""


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """What goes to both engines, and the id to abort it by."""

    body: dict[str, Any]
    kv_hints: dict[str, Any]
    rid: str


def batch_size(body: dict[str, Any]) -> int | None:
    """How many prompts a body holds; None for a single one (as upstream tells them apart)."""
    for field in ("text", "prompt"):
        value = body.get(field)
        if isinstance(value, list):
            return None if field == "prompt" and value and isinstance(value[0], int) else len(value)
    ids = body.get("input_ids")
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        return len(ids)
    return None


def facts_of(body: dict[str, Any]) -> RequestFacts:
    """The prompt's length: exact for token ids, estimated for text."""
    return RequestFacts(max(1, _tokens_in(body.get("input_ids")) or _tokens_in_text(body)))


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
    rid = body.get("rid")
    own_rid = rid if isinstance(rid, str) else request_id
    prepared = {**body, **rendezvous, "kv_hints": hints}
    if rid is None:
        prepared["rid"] = own_rid
    return PreparedBody(prepared, hints, own_rid)


def new_room() -> int:
    """A rendezvous number: 63 random bits."""
    return secrets.randbits(63)


def _with_plan(hints: Any, plan: ReadPlan) -> dict[str, Any]:
    if hints is None:
        return to_kv_hints(plan)
    if not isinstance(hints, dict) or not isinstance(hints.get("actions", []), list):
        raise BodyError("kv_hints must be an object with a list of actions")
    return {**hints, "actions": [*hints.get("actions", []), to_action(plan)]}


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

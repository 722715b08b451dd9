"""The body both engines get: the client's bytes, with the rendezvous, the read plan and an id put in front."""

import json
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sglang_dualpath.router.prompt.body import ADDED_FIELDS, Body, BodyError, value_of
from sglang_dualpath.telemetry.plan import ReadPlan, from_kv_hints, to_action, to_kv_hints


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """What goes to both engines, and the ids to abort it by: one for each prompt."""

    prefill_data: bytes
    decode_data: bytes
    kv_hints: dict[str, Any]
    rids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the two engines of a request meet; a rank is None where a server has only one."""

    prefill_url: str
    bootstrap_port: int | None
    prefill_rank: int | None = None
    decode_rank: int | None = None


def prepare(body: Body, rendezvous: Rendezvous, plan: ReadPlan) -> PreparedBody:
    """The client's body, unchanged but for what is added. Raises BodyError for ids that do not fit its prompts."""
    size = body.n_prompts
    host = urlsplit(rendezvous.prefill_url).hostname or ""
    port = rendezvous.bootstrap_port
    rids, rid = _rids(body, plan.plan_id)
    hints = _with_plan(body.kv_hints, plan)
    added: dict[str, Any] = {
        "bootstrap_host": host if size is None else [host] * size,
        "bootstrap_port": port if size is None else [port] * size,
        "bootstrap_room": new_room() if size is None else [new_room() for _ in range(size)],
        "kv_hints": hints,
        "rid": rid,
    }
    if rendezvous.prefill_rank is None and rendezvous.decode_rank is None:
        data = _join(body, added)
        return PreparedBody(data, data, hints, rids)
    # Upstream's names: the rank a request is for, and, at the decode engine, the rank its prompt is computed on.
    for_prefill = {"routed_dp_rank": rendezvous.prefill_rank}
    for_decode = {"routed_dp_rank": rendezvous.decode_rank, "disagg_prefill_dp_rank": rendezvous.prefill_rank}
    return PreparedBody(_join(body, {**added, **for_prefill}), _join(body, {**added, **for_decode}), hints, rids)


def new_room() -> int:
    """A rendezvous number: 63 random bits."""
    return secrets.randbits(63)


def _join(body: Body, added: dict[str, Any]) -> bytes:
    """The client's bytes with `added` in front; only a body that names one of those fields itself is written anew."""
    if any(bytes(getattr(body.fields, name)) for name in ADDED_FIELDS):
        return json.dumps({**json.loads(body.data), **added}).encode()
    rest = body.data.lstrip()[1:].lstrip()
    front = msgspec.json.encode(added)
    return front if rest[:1] == b"}" else front[:-1] + b"," + rest


def _rids(body: Body, plan_id: str) -> tuple[tuple[str, ...], Any]:
    """The engines' names for the body's prompts (upstream numbers those of a batch that has one id), and the field."""
    size = body.n_prompts
    rid = value_of(body.fields.rid)
    if rid is None:
        # Of its own for each attempt: an id in use is refused, and an aborted one is in use for a while.
        made = f"{plan_id}-{secrets.token_hex(8)}"
        rids = (made,) if size is None else tuple(f"{made}_{i}" for i in range(size))
        return rids, made if size is None else list(rids)
    if isinstance(rid, str):
        return ((rid,) if size is None else tuple(f"{rid}_{i}" for i in range(size))), rid
    if not isinstance(rid, list) or len(rid) != size or not all(isinstance(one, str) for one in rid):
        raise BodyError("rid must be a string, or for a batch a list with one string for each prompt")
    return tuple(rid), rid


def _with_plan(hints: dict[str, Any] | None, plan: ReadPlan) -> dict[str, Any]:
    """The client's envelope with the plan in it, unless it brings one; upstream takes an empty envelope for none."""
    if hints is None:
        return to_kv_hints(plan)
    if from_kv_hints(hints) is not None:
        return hints
    return {**hints, "actions": [*hints.get("actions", []), to_action(plan)]}

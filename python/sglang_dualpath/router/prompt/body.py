"""Reading a request body: the few fields that matter to the router, each left as the JSON text it is."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from sglang_dualpath.router.prompt.keys import CHARACTERS_PER_TOKEN, keys_of_ids, keys_of_text, salt
from sglang_dualpath.router.scheduling.request import Request
from sglang_dualpath.telemetry.plan import ACTION_TYPE, from_kv_hints, is_plan

ADDED_FIELDS = (
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "kv_hints",
    "rid",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
)
"""What the router adds to a body."""

MAX_ADDED_TOKENS = 2**31

_ABSENT = msgspec.Raw(b"")


class BodyError(ValueError):
    """A body that the router cannot send on; the message is for the client."""


class _Fields(msgspec.Struct):
    """Raw, since what they mean, and whether they are right, is the engine's affair."""

    text: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    input_ids: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    return_logprob: msgspec.Raw = _ABSENT
    priority: msgspec.Raw = _ABSENT
    sampling_params: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    extra_key: msgspec.Raw = _ABSENT
    lora_path: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    rid: msgspec.Raw = _ABSENT
    kv_hints: msgspec.Raw = _ABSENT
    bootstrap_host: msgspec.Raw = _ABSENT
    bootstrap_port: msgspec.Raw = _ABSENT
    bootstrap_room: msgspec.Raw = _ABSENT
    routed_dp_rank: msgspec.Raw = _ABSENT
    disagg_prefill_dp_rank: msgspec.Raw = _ABSENT


_decoder: msgspec.json.Decoder[_Fields] = msgspec.json.Decoder(_Fields)


@dataclass(frozen=True, slots=True)
class Body:
    """A request body as it came, and what the router needs to know of it."""

    data: bytes
    fields: _Fields
    n_prompts: int | None
    """None for a single one (as upstream tells them apart)."""
    prompt_tokens: int
    """Exact for token ids, else estimated from the text's length."""
    keys: tuple[int, ...]
    """Of its first prompt (`prompt.keys`)."""
    return_logprob: bool

    def request(self, request_id: str, arrived_s: float) -> Request:
        """What scheduling needs to know of it."""
        hints = self.kv_hints
        plan = None if hints is None else from_kv_hints(hints)
        return Request(
            request_id=request_id,
            prompt_tokens=max(1, self.prompt_tokens),
            arrived_s=arrived_s,
            keys=self.keys,
            output_tokens=self._output_tokens(),
            priority=_whole(self.fields.priority),
            read_side=None if plan is None or plan.read_side == "split" else plan.read_side,
        )

    @property
    def kv_hints(self) -> dict[str, Any] | None:
        """The client's own envelope. Raises BodyError for one that is not usable."""
        hints = value_of(self.fields.kv_hints)
        if hints is None or hints == {}:
            return None
        if not isinstance(hints, dict) or not isinstance(hints.get("actions", []), list):
            raise BodyError("kv_hints must be an object with a list of actions")
        if any(is_plan(action) for action in hints.get("actions", [])) and from_kv_hints(hints) is None:
            raise BodyError(f"kv_hints: the payload of {ACTION_TYPE} needs plan_id and read_side: prefill or decode")
        return hints

    def _output_tokens(self) -> int:
        sampling = value_of(self.fields.sampling_params)
        if isinstance(sampling, dict):
            return _bounded(sampling.get("max_new_tokens"))
        return _whole(self.fields.max_completion_tokens) or _whole(self.fields.max_tokens)


def read(data: bytes) -> Body:
    """The body in `data`. Raises BodyError for what is no JSON object."""
    try:
        if not data.isascii():
            data.decode()
        try:
            fields = _decoder.decode(data)
        except msgspec.DecodeError:
            fields = _fields_of(json.loads(data))
        n_prompts, first, rest = _prompts(fields)
        keys, tokens = _measure(first, fields)
        tokens += sum(_tokens_of(part) for part in rest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"malformed request: {error}") from None
    return Body(
        data=data,
        fields=fields,
        n_prompts=n_prompts,
        prompt_tokens=tokens,
        keys=keys,
        return_logprob=value_of(fields.return_logprob) is True,
    )


def value_of(raw: msgspec.Raw | bytes) -> Any:
    """The value of a field; None where it is absent."""
    text = bytes(raw)
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def _fields_of(value: Any) -> _Fields:
    """The fields of a body that Python's parser takes and msgspec does not: half of a surrogate pair, NaN, huge numbers."""
    if not isinstance(value, dict):
        raise ValueError("the body is not a JSON object")
    known = {name: value[name] for name in _Fields.__struct_fields__ if name in value}
    return _Fields(**{name: msgspec.Raw(json.dumps(field).encode()) for name, field in known.items()})


def _prompts(fields: _Fields) -> tuple[int | None, bytes, list[bytes]]:
    """How many prompts (None: a single one), the JSON text of the first, and of the others."""
    for name in ("text", "prompt", "input_ids"):
        raw = bytes(getattr(fields, name))
        if raw[:1] == b'"':
            return None, raw, []
        if raw[:1] != b"[":
            continue
        inside = raw[1:].lstrip()[:1]
        if inside in (b'"', b"["):
            parts = _parts(raw)
            return len(parts), parts[0], parts[1:]
        if name != "text":
            return None, raw, []
    return None, bytes(fields.messages), []


def _parts(array: bytes) -> list[bytes]:
    """The JSON texts of an array's elements."""
    try:
        parts: list[msgspec.Raw] = msgspec.json.decode(array, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return [json.dumps(part).encode() for part in json.loads(array)]
    return [bytes(part) for part in parts]


def _measure(prompt: bytes, fields: _Fields) -> tuple[tuple[int, ...], int]:
    """Keys and tokens of one prompt, given as JSON text."""
    seed = salt(
        bytes(fields.model),
        bytes(fields.cache_salt),
        bytes(fields.extra_key),
        bytes(fields.lora_path),
        bytes(fields.tools),
    )
    if prompt[:1] == b"[" and bytes(fields.messages) != prompt:
        return keys_of_ids(prompt, seed)
    text = canonical_text(value_of(prompt)) if prompt else b""
    return keys_of_text(text, seed), len(text) // CHARACTERS_PER_TOKEN


def canonical_text(prompt: Any) -> bytes:
    """A text prompt, or a chat's messages in their order: a message appended leaves all before it as it was."""
    parts: list[str] = []
    _collect(prompt, parts)
    return "\0".join(parts).encode(errors="surrogatepass")


def _collect(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(value)
    elif isinstance(value, list):
        for item in value:
            _collect(item, parts)
    elif isinstance(value, dict):
        for name, item in value.items():
            parts.append(name)
            _collect(item, parts)
    else:
        parts.append(str(value))


def _tokens_of(part: bytes) -> int:
    return part.count(b",") + 1 if part[:1] == b"[" else len(part) // CHARACTERS_PER_TOKEN


def _whole(raw: msgspec.Raw) -> int:
    return _bounded(value_of(raw))


def _bounded(value: Any) -> int:
    """A whole number of the client's, or 0; bounded, since sums of it are kept."""
    usable = isinstance(value, int) and not isinstance(value, bool)
    return max(-MAX_ADDED_TOKENS, min(value, MAX_ADDED_TOKENS)) if usable else 0

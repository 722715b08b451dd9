"""Reading bodies: what counts is found, nothing that a client may send breaks it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.prompt.body import BodyError, read
from sglang_dualpath.router.scheduling.marks import KEY_BLOCK_TOKENS
from sglang_dualpath.telemetry.plan import ReadPlan, to_kv_hints

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
NAMES = [
    "text",
    "prompt",
    "input_ids",
    "messages",
    "stream",
    "sampling_params",
    "max_tokens",
    "priority",
    "model",
    "rid",
]
bodies = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), json_values, max_size=6)


def body_of(value: dict[str, Any]) -> Any:
    """The body as the router reads it."""
    return read(json.dumps(value).encode())


def refusal(data: bytes) -> str | None:
    """Why a body is refused; None when it is read, and makes a request."""
    try:
        assert read(data).request("r", 0.0).prompt_tokens >= 1
    except BodyError as error:
        return str(error)
    return None


@given(bodies)
def test_any_json_object_is_read_or_refused_with_a_reason(value: dict[str, Any]) -> None:
    assert refusal(json.dumps(value).encode()) != ""


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    said = refusal(data)
    assert said is None or "malformed" in said


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"nonsense", b'{"a": }', b'{"text": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BodyError, match="malformed"):
        read(data)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"text": "a"}, None),
        ({"text": ["a"]}, 1),
        ({"prompt": "a"}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"input_ids": [1, 2]}, None),
        ({"input_ids": [[1, 2], [3]]}, 2),
        ({"input_ids": []}, None),
        ({"text": "a", "input_ids": [[1], [2]]}, None),
        ({"messages": [{"role": "user", "content": "a"}] * 3}, None),
        ({}, None),
    ],
)
def test_a_batch_is_what_upstream_takes_for_one(value: dict[str, Any], size: int | None) -> None:
    assert body_of(value).n_prompts == size


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"input_ids": list(range(77))}, 77),
        ({"input_ids": [list(range(5)), list(range(8))]}, 13),
        ({"prompt": list(range(9))}, 9),
        ({"text": "x" * 400}, 100),
        ({"text": ["x" * 400, "y" * 39]}, 109),
        ({}, 1),
    ],
)
def test_the_prompts_length_is_exact_for_ids_and_estimated_for_text(value: dict[str, Any], tokens: int) -> None:
    assert abs(body_of(value).request("r", 0.0).prompt_tokens - tokens) <= 1


def test_a_chat_that_goes_on_keeps_the_keys_of_what_was_said() -> None:
    said = [{"role": "user", "content": "x" * 3000}, {"role": "assistant", "content": "y" * 2000}]
    before = body_of({"messages": said}).keys
    after = body_of({"messages": [*said, {"role": "user", "content": "z" * 2000}]}).keys
    assert len(before) == 5000 // 4 // KEY_BLOCK_TOKENS
    assert after[: len(before)] == before


@pytest.mark.parametrize("field", ["model", "cache_salt", "extra_key", "lora_path", "tools"])
def test_models_and_tenants_have_keys_of_their_own(field: str) -> None:
    ids = list(range(KEY_BLOCK_TOKENS))
    assert body_of({"input_ids": ids, field: "a"}).keys != body_of({"input_ids": ids, field: "b"}).keys


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"sampling_params": {"max_new_tokens": 7}}, 7),
        ({"max_tokens": 8}, 8),
        ({"max_completion_tokens": 9, "max_tokens": 8}, 9),
        ({"max_tokens": "many"}, 0),
        ({"sampling_params": [{"max_new_tokens": 7}]}, 0),
    ],
)
def test_what_it_may_generate_is_taken_from_where_each_api_says_it(value: dict[str, Any], tokens: int) -> None:
    assert body_of(value).request("r", 0.0).output_tokens == tokens


@pytest.mark.parametrize("odd", [b'"\\ud83d"', b"NaN", b"1" + b"0" * 400, b"-Infinity"])
def test_what_only_a_lenient_parser_takes_is_left_to_the_engine(odd: bytes) -> None:
    """Clients that cut a text inside an emoji send half of it."""
    body = read(b'{"text": "abc", "stream": true, "odd": ' + odd + b"}")
    assert body.prompt_tokens == 0
    assert read(b'{"text": ["abc", "\\ud83d"], "rid": "\\ud83d"}').n_prompts == 2


@pytest.mark.parametrize(("given", "priority"), [(3, 3), (-1, -1), ("3", 0), (True, 0), (None, 0)])
def test_a_priority_is_a_whole_number_or_none(given: Any, priority: int) -> None:
    assert body_of({"priority": given}).request("r", 0.0).priority == priority


@pytest.mark.parametrize("field", ["rid", "text", "odd"])
def test_bytes_that_are_no_utf_8_are_refused_wherever_they_stand(field: str) -> None:
    assert "malformed" in str(refusal(b'{"%s": "\x91"}' % field.encode()))


def test_a_plan_that_comes_with_the_request_is_seen() -> None:
    hints = to_kv_hints(ReadPlan(read_side="decode", plan_id="p"))
    assert body_of({"kv_hints": hints}).request("r", 0.0).read_side == "decode"
    assert body_of({}).request("r", 0.0).read_side is None


@pytest.mark.parametrize("hints", [5, "x", [1], {"actions": 5}])
def test_hints_that_are_no_envelope_are_refused_by_name(hints: Any) -> None:
    with pytest.raises(BodyError, match="kv_hints"):
        body_of({"kv_hints": hints}).request("r", 0.0)

"""Plans on the OpenAI endpoints: a header carries them; a bad one is none, and the client's own hints stand."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_dualpath.engine.frontend import lift_plan
from sglang_dualpath.telemetry.plan import PLAN_HEADER, ReadPlan, to_kv_hints

HINTS = to_kv_hints(ReadPlan(read_side="decode", plan_id="p1"))


def lifted(header: str | None, own_hints: Any = None) -> Any:
    """The hints of the internal request after the header was looked at."""
    internal = SimpleNamespace(kv_hints=own_hints)
    headers = {} if header is None else {PLAN_HEADER: header}
    assert lift_plan((internal, object()), None, None, SimpleNamespace(headers=headers)) is None
    return internal.kv_hints


def test_the_headers_plan_becomes_the_requests_hints() -> None:
    assert lifted(json.dumps(HINTS)) == HINTS


def test_without_a_header_there_are_none() -> None:
    assert lifted(None) is None


@pytest.mark.parametrize("header", ["", "{", "[]", "null", "{}", '{"actions": []}', "\xff"])
def test_a_header_that_is_no_plan_is_left_alone(header: str) -> None:
    assert lifted(header) is None


def test_a_header_nested_deeper_than_the_stack_is_left_alone() -> None:
    assert lifted("[" * 100_000) is None


def test_hints_that_the_client_gave_stand() -> None:
    own = {"actions": []}
    assert lifted(json.dumps(HINTS), own) is own


def test_a_request_without_an_http_request_has_no_header() -> None:
    internal = SimpleNamespace(kv_hints=None)
    lift_plan((internal, object()), None, None)
    assert internal.kv_hints is None

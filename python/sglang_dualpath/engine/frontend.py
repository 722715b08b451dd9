"""Read plans on upstream's OpenAI endpoints, whose requests have no field for `kv_hints`: a header carries the plan."""

import json
from typing import Any

from sglang_dualpath.telemetry.plan import PLAN_HEADER, from_kv_hints


def lift_plan(converted: Any, serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Put the plan of the HTTP header on upstream's internal request (`GenerateReqInput.kv_hints`)."""
    internal, _ = converted
    text = None if raw_request is None else raw_request.headers.get(PLAN_HEADER)
    if text is None or getattr(internal, "kv_hints", None) is not None:
        return None
    try:
        hints = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if from_kv_hints(hints) is not None:
        internal.kv_hints = hints
    return None

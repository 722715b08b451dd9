"""The router's interface, described at `/openapi.json`: its own endpoints in full, of the engines' the fields it reads."""

from typing import Any

from aiohttp import web

VERSION = "3.1.0"

_TEXT = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_SAMPLING = {
    "type": "object",
    "properties": {
        "max_new_tokens": {"type": "integer", "minimum": 0},
        "temperature": {"type": "number", "minimum": 0},
    },
}
_SHARED = {
    "stream": {"type": "boolean"},
    "rid": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    "priority": {"type": "integer"},
    "kv_hints": {
        "type": "object",
        "description": "an envelope of KV hints; a dualpath.read_plan in it names the read side",
    },
}


def describe() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": VERSION,
        "info": {
            "title": "DualPath router",
            "version": "1",
            "description": "Routes to pairs of prefill and decode engines.",
        },
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
        "paths": {
            "/generate": _generating(
                {
                    "text": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]},
                    "input_ids": {"oneOf": [_TOKENS, {"type": "array", "items": _TOKENS}]},
                    "sampling_params": _SAMPLING,
                    "return_logprob": {"type": "boolean"},
                },
            ),
            "/v1/completions": _generating(
                {
                    "model": _TEXT,
                    "prompt": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}, _TOKENS]},
                    "max_tokens": {"type": "integer", "minimum": 0},
                },
            ),
            "/v1/chat/completions": _generating(
                {
                    "model": _TEXT,
                    "messages": {"type": "array", "items": {"type": "object"}},
                    "max_tokens": {"type": "integer", "minimum": 0},
                    "tools": {"type": "array", "items": {"type": "object"}},
                },
            ),
            "/v1/embeddings": {"post": _operation("Refused: engines in pairs make no embeddings", {}, (400,))},
            "/v1/models": {"get": _operation("The model the engines serve")},
            "/health": {"get": _operation("Whether a request could be served")},
            "/readiness": {"get": _operation("The same")},
            "/liveness": {"get": _operation("Whether the router runs")},
            "/server_info": {"get": _operation("What every engine says of itself")},
            "/get_loads": {"get": _operation("Each engine's load as the scheduler sees it")},
            "/metrics": {"get": _operation("Prometheus metrics")},
            "/flush_cache": {"post": _operation("Empty the device caches of all engines")},
            "/workers": {
                "get": _operation("All servers"),
                "post": _operation(
                    "A server joins",
                    {
                        "url": _TEXT,
                        "role": {"type": "string", "enum": ["prefill", "decode"]},
                        "bootstrap_port": {"type": "integer", "minimum": 1, "maximum": 65535},
                    },
                    (202, 400, 409),
                ),
            },
            "/workers/{id}": {
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": _TEXT}],
                "get": _operation("One server"),
                "delete": _operation("It drains, then leaves", None, (202, 404)),
            },
        },
    }


def _generating(properties: dict[str, Any]) -> dict[str, Any]:
    statuses = (200, 400, 413, 429, 502, 503, 504)
    return {"post": _operation("Passed to a pair of engines", {**properties, **_SHARED}, statuses)}


def _operation(
    summary: str, body: dict[str, Any] | None = None, statuses: tuple[int, ...] = (200, 503)
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {str(status): {"description": ""} for status in statuses},
    }
    if body is not None:
        schema = {"type": "object", "properties": body, "additionalProperties": True}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


async def serve(request: web.Request) -> web.Response:
    """The aiohttp handler."""
    return web.json_response(describe())

"""Log lines as JSON: each with its request's id."""

import json
import logging

import pytest
from sglang_dualpath.router import logs


def line(message: str, *arguments: object, failed: bool = False) -> dict[str, object]:
    """One record, formatted and parsed."""
    error = None
    if failed:
        try:
            raise ValueError("why")
        except ValueError as caught:
            error = (type(caught), caught, caught.__traceback__)
    record = logging.LogRecord("router.x", logging.WARNING, "file", 1, message, arguments, error)
    parsed = json.loads(logs.JsonFormatter().format(record))
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_has_its_parts() -> None:
    shown = line("engine %s is gone", "d0")
    assert (shown["level"], shown["logger"], shown["message"]) == ("warning", "router.x", "engine d0 is gone")
    assert "request_id" not in shown


def test_a_line_of_a_request_names_it() -> None:
    token = logs.request_id.set("r1")
    try:
        assert line("x")["request_id"] == "r1"
    finally:
        logs.request_id.reset(token)


def test_an_exception_is_in_it() -> None:
    assert "ValueError: why" in str(line("x", failed=True)["exception"])


@pytest.mark.parametrize("text", ['with "quotes"', "two\nlines", "\udc80"])
def test_any_message_is_one_line(text: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, text, (), None)
    assert "\n" not in logs.JsonFormatter().format(record)

"""Error answers, in the shape that OpenAI's clients and upstream's own share."""

import json

from aiohttp import web

from sglang_dualpath.router.exchange import Answer, error_answer

RETRY_AFTER_S = 1

STATUS_OF = {"queue_full": 429, "queue_timeout": 503, "no_engine": 503, "unreachable": 503}


def respond(answer: Answer) -> web.Response:
    """An answer as a response."""
    return web.Response(status=answer.status, body=answer.body, headers={"content-type": answer.content_type})


def refuse(status: int, message: str, kind: str) -> web.Response:
    """An error of the router's own; those that pass by themselves say when to come again."""
    response = respond(error_answer(status, message, kind))
    if status in (429, 503):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


async def end_with_error(response: web.StreamResponse, answer: Answer) -> web.StreamResponse:
    """The status line of a stream is out already: the error goes as its last event."""
    await response.write(b"data: " + answer.body + b"\n\n")
    await response.write_eof()
    return response


def message_of(answer: Answer) -> str:
    """The error's text, for the log."""
    try:
        return str(json.loads(answer.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.body[:200].decode(errors="replace")

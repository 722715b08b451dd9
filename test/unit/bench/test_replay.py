"""Agents against an endpoint that streams as SGLang does."""

import json

from aiohttp import web
from aiohttp.test_utils import TestServer
from sglang_dualpath.bench.replay import ReplayOptions, TurnResult, replay
from sglang_dualpath.bench.trace import Session, Trace, Turn

TRACE = Trace(
    source="test",
    sessions=[
        Session(
            session_id=name,
            context_text=f"context of {name}.",
            turns=[Turn(appended_text=f" tool {i}.", output_tokens=3) for i in range(3)],
        )
        for name in ("a", "b")
    ],
)


class Endpoint:
    """Answers `<n>` for the n-th request of a session, in as many chunks as tokens were asked for."""

    def __init__(self, fail_from: int | None = None) -> None:
        self.texts: list[str] = []
        self.fail_from = fail_from

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.texts.append(body["text"])
        if self.fail_from is not None and len(self.texts) > self.fail_from:
            return web.json_response({"error": {"message": "no more"}}, status=503)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        asked = body["sampling_params"]["max_new_tokens"]
        for n in range(1, asked + 1):
            event = {
                "text": "<ok>"[: n + 1],
                "meta_info": {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": n},
            }
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def serve(self) -> TestServer:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        server = TestServer(app)
        await server.start_server()
        return server


async def run(endpoint: Endpoint) -> list[TurnResult]:
    server = await endpoint.serve()
    seen: list[TurnResult] = []
    try:
        results = await replay(str(server.make_url("")).rstrip("/"), TRACE, ReplayOptions(timeout_s=20), seen.append)
    finally:
        await server.close()
    assert seen == results
    return results


async def test_each_prompt_holds_everything_before_it_and_the_answers() -> None:
    endpoint = Endpoint()
    results = await run(endpoint)
    assert sorted(text for text in endpoint.texts if "of a" in text) == [
        "context of a. tool 0.",
        "context of a. tool 0.<ok> tool 1.",
        "context of a. tool 0.<ok> tool 1.<ok> tool 2.",
    ]
    assert sorted((r.session_id, r.turn) for r in results) == [(s, t) for s in ("a", "b") for t in range(3)]
    assert all(r.error is None and r.output_tokens == 3 and r.cached_tokens == 4 for r in results)
    assert all(0 <= r.ttft_s <= r.ended_s - r.began_s for r in results)


async def test_an_agent_whose_turn_fails_stops_and_says_why() -> None:
    results = await run(Endpoint(fail_from=2))
    failed = [r for r in results if r.error is not None]
    assert len(failed) == 2
    assert all("no more" in (r.error or "") for r in failed)
    assert len(results) == 4

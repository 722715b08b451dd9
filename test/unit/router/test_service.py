"""The router's HTTP front, with engines that behave and engines that do not."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from sglang_dualpath.router.service import GENERATING_PATHS
from sglang_dualpath.telemetry.plan import from_kv_hints

from test.unit.router.running_router import RunningRouter, running_router
from test.unit.router.stub_engine import (
    StubEngine,
    after,
    answers,
    dies_at_once,
    generated,
    hangs,
    streams,
    stub_engines,
    until,
)

pytestmark = pytest.mark.asyncio

RAW_CHUNKS = [
    'data: {"text": "h\u00e9"}\n\n'.encode(),
    b'data:  {  "spaced"\t: 1.0e0 }\r\n\r\n',
    b": a comment\n\n",
    b"data: \xff\xfe not utf-8\n\n",
    b"da",
    b"ta: split\n\n",
    b"data: [DONE]\n\n",
]


async def posted(router: RunningRouter, path: str = "/generate", **body: Any) -> tuple[int, bytes]:
    """Status and body of a request's answer."""
    async with router.client.post(router.url + path, json=body) as response:
        return response.status, await response.read()


def message(body: bytes) -> str:
    """The error message in an answer."""
    return json.loads(body)["error"]["message"]


# ---- what engines get


@pytest.mark.parametrize("path", GENERATING_PATHS)
async def test_a_request_reaches_a_pair_with_one_room_and_one_plan(path: str) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        assert (await posted(router, path, text="hi", temperature=0.5))[0] == 200
        assert prefill.bodies == decode.bodies
        body = prefill.bodies[0]
        assert (prefill.calls[0].path, decode.calls[0].path) == (path, path)
        assert (body["text"], body["temperature"]) == ("hi", 0.5)
        assert isinstance(body["bootstrap_room"], int)
        assert from_kv_hints(body["kv_hints"]) is not None


async def test_a_batch_gets_as_many_rooms_as_prompts() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        assert (await posted(router, input_ids=[[1, 2], [3], [4]]))[0] == 200
        assert prefill.bodies == decode.bodies
        assert len(set(prefill.bodies[0]["bootstrap_room"])) == 3


async def test_fields_the_router_does_not_know_arrive_untouched() -> None:
    strange = {
        "x": [None, {"y": 1.5}],
        "\u00e9": "\U0001f600",
        "alone": "\ud83d",
        "n": 2**70,
        "empty": {},
        "a.b": False,
    }
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        await posted(router, text="hi", **strange)
        for engine in (prefill, decode):
            assert {name: engine.bodies[0][name] for name in strange} == strange


async def test_headers_for_tracing_and_authorization_are_passed_on_and_no_others() -> None:
    headers = {"authorization": "Bearer k", "x-request-id": "r", "traceparent": "00-1-2-03", "cookie": "secret=1"}
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        async with router.client.post(router.url + "/generate", json={"text": "a"}, headers=headers) as response:
            assert response.status == 200
        for engine in (prefill, decode):
            got = engine.calls[0].headers
            assert (got["authorization"], got["x-request-id"], got["traceparent"]) == ("Bearer k", "r", "00-1-2-03")
            assert "cookie" not in got


async def test_the_plan_of_the_policy_is_the_plan_on_the_request() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        for prefill_queue, decode_queue, side in ((500, 10, "decode"), (10, 500, "prefill")):
            router.report(prefill, read_q_tokens=prefill_queue)
            router.report(decode, read_q_tokens=decode_queue)
            await posted(router, text="hi")
            plan = from_kv_hints(decode.bodies[-1]["kv_hints"])
            assert plan is not None and plan.read_side == side
        assert router.metric("read_side_total", side="decode") == 1
        assert router.metric("read_side_total", side="prefill") == 1


async def test_a_plan_that_comes_with_the_request_holds_and_is_accounted_for() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        await posted(router, text="first")
        hints = prefill.bodies[0]["kv_hints"]
        hints["actions"][0]["payload"]["read_side"] = "decode"
        decode.behaviour = hangs
        request = asyncio.create_task(posted(router, input_ids=[1] * 50, kv_hints=hints))
        await until(lambda: len(decode.calls) == 2)
        assert decode.bodies[1]["kv_hints"] == hints
        assert router.service.fleet.loads("decode")[0].read_q_tokens == 50
        request.cancel()


async def test_concurrent_requests_may_share_a_correlation_id() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        go_on = asyncio.Event()
        decode.behaviour = after(go_on, answers(generated("x")))
        headers = {"x-correlation-id": "session-7"}

        async def ask() -> int:
            async with router.client.post(router.url + "/generate", json={"text": "a"}, headers=headers) as response:
                return response.status

        requests = [asyncio.create_task(ask()) for _ in range(3)]
        await until(lambda: len(decode.calls) == 3)
        go_on.set()
        assert await asyncio.gather(*requests) == [200, 200, 200]


# ---- what clients get


async def test_a_stream_arrives_byte_for_byte() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        decode.behaviour = streams(RAW_CHUNKS)
        async with router.client.post(router.url + "/generate", json={"text": "a", "stream": True}) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert await response.read() == b"".join(RAW_CHUNKS)
        assert router.metric("requests_total", outcome="ok") == 1


async def test_a_chunk_arrives_before_the_next_one_is_made() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        go_on = asyncio.Event()
        decode.behaviour = streams(RAW_CHUNKS, go_on)
        async with router.client.post(router.url + "/generate", json={"text": "a", "stream": True}) as response:
            assert await response.content.readexactly(len(RAW_CHUNKS[0])) == RAW_CHUNKS[0]
            go_on.set()
            assert await response.content.read() == b"".join(RAW_CHUNKS[1:])


async def test_a_large_stream_arrives_whole() -> None:
    chunks = [bytes([i % 251]) * 65_537 for i in range(100)]
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        decode.behaviour = streams(chunks)
        assert await posted(router, text="a", stream=True) == (200, b"".join(chunks))


async def test_many_requests_at_once_get_each_its_own_answer() -> None:
    async with stub_engines(4) as engines, running_router(engines[:2], engines[2:]) as router:

        async def echo(call: Any) -> Any:
            return await answers({"echo": call.body["text"]})(call)

        for engine in engines[2:]:
            engine.behaviour = echo
        got = await asyncio.gather(*(posted(router, text=f"t{i}") for i in range(200)))
        assert [json.loads(body)["echo"] for _, body in got] == [f"t{i}" for i in range(200)]
        assert router.in_flight() == 0
        assert router.metric("requests_total", outcome="ok") == 200
        assert router.metric("in_flight") == 0


# ---- failures


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prefill_error_reaches_the_client_with_its_status(stream: bool) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        prefill.behaviour = answers({"error": {"message": "the prompt is too long"}}, 400)
        decode.behaviour = hangs
        status, body = await posted(router, text="a", stream=stream)
        assert (status, message(body)) == (400, "the prompt is too long")
        assert not decode.running
        assert router.in_flight() == 0
        assert router.metric("requests_total", outcome="engine_error") == 1


async def test_a_decode_engine_killed_in_mid_stream_ends_it_with_an_error_event() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        go_on = asyncio.Event()
        decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], go_on, then_die=True)
        async with router.client.post(router.url + "/generate", json={"text": "a", "stream": True}) as response:
            assert await response.content.readexactly(9) == b"data: 1\n\n"
            go_on.set()
            rest = await response.content.read()
        last = rest.strip().split(b"\n\n")[-1]
        assert decode.url in message(last.removeprefix(b"data: "))
        assert b"[DONE]" not in rest
        await until(lambda: router.in_flight() == 0)


async def test_a_decode_engine_that_dies_without_a_word_is_a_502() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        decode.behaviour = dies_at_once
        for stream in (False, True):
            status, body = await posted(router, text="a", stream=stream)
            assert (status, decode.url in message(body)) == (502, True)
        assert router.in_flight() == 0


async def test_an_empty_stream_is_a_502() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        decode.behaviour = streams([])
        status, body = await posted(router, text="a", stream=True)
        assert (status, message(body)) == (502, "the decode engine closed the stream without an answer")


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_is_retried_on_another_engine(role: str, stream: bool) -> None:
    async with stub_engines(4) as engines:
        prefill, decode = engines[:2], engines[2:]
        async with running_router(prefill, decode, "--policy", "round_robin") as router:
            await probed(router, engines)
            dead = (prefill if role == "prefill" else decode)[0]
            await dead.stop()
            assert (await posted(router, text="a", stream=stream))[0] == 200
            assert router.metric("retries_total") == 1
            assert not router.service.fleet.engine(dead.url).healthy
            assert (await posted(router, text="a", stream=stream))[0] == 200
            assert router.metric("retries_total") == 1
            assert all(not engine.running for engine in engines)
            assert router.in_flight() == 0


async def test_a_retry_goes_to_the_same_decode_engine_while_that_still_aborts_the_first_attempt() -> None:
    async with stub_engines(3) as (first, second, decode):
        async with running_router([first, second], [decode], "--policy", "round_robin") as router:
            await probed(router, [first, second, decode])
            await first.stop()
            status, _ = await posted(router, text="a")
            assert status == 200
            assert len({body["rid"] for body in decode.bodies}) == len(decode.bodies)


async def test_without_a_reachable_engine_the_answer_says_so_and_when_to_come_back() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        await probed(router, [prefill, decode])
        await decode.stop()
        async with router.client.post(router.url + "/generate", json={"text": "a"}) as response:
            assert response.status == 503
            assert response.headers["retry-after"] == "1"
            assert "no healthy decode engine" in message(await response.read())
        async with router.client.get(router.url + "/health") as response:
            assert response.status == 503
            assert message(await response.read()) == "no healthy decode engine"


async def test_a_request_past_its_time_is_a_504_and_aborted() -> None:
    async with stub_engines(2) as (prefill, decode):
        async with running_router([prefill], [decode], "--request-timeout-secs", "2") as router:
            decode.behaviour = hangs
            status, body = await posted(router, text="a")
            assert (status, message(body)) == (504, "no answer within 2.0 s")
            assert not decode.running
            assert router.metric("requests_total", outcome="timeout") == 1


async def test_a_stream_past_its_time_ends_with_an_error_event() -> None:
    async with stub_engines(2) as (prefill, decode):
        async with running_router([prefill], [decode], "--request-timeout-secs", "2") as router:
            decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], asyncio.Event())
            status, body = await posted(router, text="a", stream=True)
            assert status == 200
            first, last, rest = body.split(b"\n\n")
            assert (first, rest) == (b"data: 1", b"")
            assert message(last.removeprefix(b"data: ")) == "no answer within 2.0 s"
            assert not decode.running
            assert router.metric("requests_total", outcome="timeout") == 1


# ---- clients that leave


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_both_engines(stream: bool) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        prefill.behaviour = decode.behaviour = hangs
        request = asyncio.create_task(posted(router, text="a", stream=stream))
        await until(lambda: bool(prefill.running and decode.running))
        request.cancel()
        await until(lambda: not prefill.running and not decode.running)
        await until(lambda: router.in_flight() == 0)
        await until(lambda: router.metric("requests_total", outcome="client_gone") == 1)
        assert router.metric("in_flight") == 0


async def test_a_client_that_leaves_in_mid_stream_aborts_the_decode_engine() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], asyncio.Event())
        async with aiohttp.ClientSession() as client:
            response = await client.post(router.url + "/generate", json={"text": "a", "stream": True})
            assert await response.content.readexactly(9) == b"data: 1\n\n"
            response.close()
        await until(lambda: not decode.running)
        await until(lambda: router.in_flight() == 0)
        await until(lambda: router.metric("requests_total", outcome="client_gone") == 1)


async def test_a_client_that_leaves_while_waiting_gives_up_its_place() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        router.report(prefill, tok=10**6)
        request = asyncio.create_task(posted(router, text="a"))
        await until(lambda: router.service.dispatcher.n_waiting == 1)
        request.cancel()
        await until(lambda: router.service.dispatcher.n_waiting == 0)
        router.report(prefill, tok=0)
        assert (await posted(router, text="b"))[0] == 200
        assert [body["text"] for body in prefill.bodies] == ["b"]


# ---- the queue


async def test_requests_wait_for_a_prefill_engine_that_is_not_overloaded_in_order() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        router.report(prefill, tok=10**6)
        requests = []
        for i in range(3):
            requests.append(asyncio.create_task(posted(router, text=f"t{i}")))
            await until(lambda n=i: router.service.dispatcher.n_waiting == n + 1)  # type: ignore[misc]
        assert not prefill.calls
        router.report(prefill, tok=0)
        assert [status for status, _ in await asyncio.gather(*requests)] == [200] * 3
        assert sorted(body["text"] for body in prefill.bodies) == ["t0", "t1", "t2"]


async def test_a_full_queue_is_a_503_at_once_and_names_its_flag() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], "--queue-size", "1") as router:
        router.report(prefill, tok=10**6)
        waiting = asyncio.create_task(posted(router, text="a"))
        await until(lambda: router.service.dispatcher.n_waiting == 1)
        status, body = await posted(router, text="b")
        assert (status, "--queue-size" in message(body)) == (503, True)
        router.report(prefill, tok=0)
        assert (await waiting)[0] == 200
        assert router.metric("requests_total", outcome="queue_full") == 1


# ---- bad input


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe\x00",
        b'{"text": ' + b"[" * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "list", "string", "null", "bytes", "deep", "long number"],
)
async def test_a_body_that_is_no_json_object_is_a_400_and_reaches_no_engine(data: bytes) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        async with router.client.post(router.url + "/generate", data=data) as response:
            assert response.status == 400
            assert "malformed request" in message(await response.read())
        assert not prefill.calls
        assert not decode.calls
        assert router.metric("requests_total", outcome="bad_request") == 1


async def test_messages_nested_beyond_reason_are_a_400() -> None:
    deep = b'{"messages": ' + b"[" * 700 + b"]" * 700 + b"}"
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        async with router.client.post(router.url + "/v1/chat/completions", data=deep) as response:
            assert response.status == 400
        assert router.in_flight() == 0


@pytest.mark.parametrize("body", [{"text": "a", "kv_hints": 5}, {"text": ["a", "b"], "rid": ["one"]}])
async def test_a_field_the_router_cannot_extend_is_a_400_that_names_it(body: dict[str, Any]) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        status, answer = await posted(router, **body)
        assert status == 400
        assert ("kv_hints" if "kv_hints" in body else "rid") in message(answer)
        assert router.in_flight() == 0


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with stub_engines(2) as (prefill, decode):
        async with running_router([prefill], [decode], "--max-payload-size", "1000") as router:
            assert (await posted(router, text="x" * 2000))[0] == 413
            assert not prefill.calls


# ---- the API key


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "k", b"Bearer \xff\xfe"])
async def test_without_the_key_the_answer_is_401(given: str | bytes | None) -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], "--api-key", "k") as router:
        head = b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\nConnection: close\r\n"
        if given is not None:
            head += b"Authorization: " + (given if isinstance(given, bytes) else given.encode()) + b"\r\n"
        host, port = router.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"\r\n{}")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert not prefill.calls


async def test_with_the_key_requests_and_aborts_carry_it_to_the_engines() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], "--api-key", "k") as router:
        prefill.behaviour = decode.behaviour = hangs
        client = aiohttp.ClientSession(headers={"authorization": "Bearer k"})
        request = asyncio.create_task(client.post(router.url + "/generate", json={"text": "a"}))
        await until(lambda: bool(prefill.running and decode.running))
        request.cancel()
        await until(lambda: not prefill.running and not decode.running)
        await client.close()
        for engine in (prefill, decode):
            assert engine.calls[0].headers["authorization"] == "Bearer k"
            assert [headers["authorization"] for _, headers in engine.aborts] == ["Bearer k"]


async def test_health_liveness_and_metrics_need_no_key() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], "--api-key", "k") as router:
        for path in ("/health", "/liveness", "/readiness", "/metrics"):
            async with router.client.get(router.url + path) as response:
                assert response.status == 200
        async with router.client.get(router.url + "/workers") as response:
            assert response.status == 401


# ---- the rest


async def test_workers_shows_what_each_engine_is_and_does() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        router.report(decode)
        decode.behaviour = hangs
        request = asyncio.create_task(posted(router, text="a"))
        await until(lambda: bool(decode.running) and router.in_flight() == 1)
        async with router.client.get(router.url + "/workers") as response:
            workers = (await response.json())["workers"]
        shared = {"healthy": True}
        assert workers == [
            {"url": prefill.url, "role": "prefill", "bootstrap_port": 8998, "in_flight": 0, "reports": False, **shared},
            {"url": decode.url, "role": "decode", "bootstrap_port": None, "in_flight": 1, "reports": True, **shared},
        ]
        request.cancel()


async def test_questions_about_the_model_are_answered_by_an_engine() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        for path in ("/v1/models", "/get_model_info", "/model_info"):
            async with router.client.get(router.url + path) as response:
                assert (await response.json())["path"] == path


async def test_server_info_holds_all_engines() -> None:
    async with stub_engines(3) as (prefill, *decode), running_router([prefill], decode) as router:
        async with router.client.get(router.url + "/server_info") as response:
            info = await response.json()
        assert [one["from"] for one in info["prefill"]] == [prefill.url]
        assert [one["from"] for one in info["decode"]] == [engine.url for engine in decode]
        assert info["internal_states"] == [{"url": engine.url} for engine in decode]


async def test_flushing_reaches_all_engines_and_tells_of_those_it_did_not() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        async with router.client.post(router.url + "/flush_cache") as response:
            assert (response.status, await response.json()) == (200, {prefill.url: 200, decode.url: 200})
        await decode.stop()
        async with router.client.post(router.url + "/flush_cache") as response:
            assert (response.status, await response.json()) == (502, {prefill.url: 200, decode.url: 502})


async def test_metrics_are_in_prometheus_text() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode]) as router:
        await posted(router, text="a")
        async with router.client.get(router.url + "/metrics") as response:
            assert 'dualpath_router_requests_total{outcome="ok"} 1.0' in await response.text()


async def probed(router: RunningRouter, engines: list[StubEngine]) -> None:
    """Wait until the router's first probe is over, so that it finds nothing out by itself afterwards."""
    await until(lambda: all(engine.n_probes > 0 for engine in engines))
    await until(lambda: all(router.service.fleet.engine(engine.url).healthy for engine in engines))
    async with router.client.get(router.url + "/health") as response:
        assert response.status == 200

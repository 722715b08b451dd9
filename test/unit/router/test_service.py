"""The router's HTTP front, with engines that behave: what they get, what the client gets."""

import asyncio
import json
from typing import Any

import pytest
from sglang_dualpath.router.service import GENERATING_PATHS
from sglang_dualpath.telemetry.plan import from_kv_hints

from test.unit.router.running_router import message, posted, routed_pair, running_router
from test.unit.router.stub_engine import after, answers, generated, hangs, streams, stub_engines, until

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


# ---- what engines get


@pytest.mark.parametrize("path", GENERATING_PATHS)
async def test_a_request_reaches_a_pair_with_one_room_and_one_plan(path: str) -> None:
    async with routed_pair() as (router, prefill, decode):
        assert (await posted(router, path, text="hi", temperature=0.5))[0] == 200
        assert prefill.bodies == decode.bodies
        body = prefill.bodies[0]
        assert (prefill.calls[0].path, decode.calls[0].path) == (path, path)
        assert (body["text"], body["temperature"]) == ("hi", 0.5)
        assert isinstance(body["bootstrap_room"], int)
        assert from_kv_hints(body["kv_hints"]) is not None


async def test_a_batch_gets_as_many_rooms_as_prompts() -> None:
    async with routed_pair() as (router, prefill, decode):
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
    async with routed_pair() as (router, prefill, decode):
        await posted(router, text="hi", **strange)
        for engine in (prefill, decode):
            assert {name: engine.bodies[0][name] for name in strange} == strange


async def test_headers_for_tracing_and_authorization_are_passed_on_and_no_others() -> None:
    headers = {"authorization": "Bearer k", "x-request-id": "r", "traceparent": "00-1-2-03", "cookie": "secret=1"}
    async with routed_pair() as (router, prefill, decode):
        async with router.client.post(router.url + "/generate", json={"text": "a"}, headers=headers) as response:
            assert response.status == 200
        for engine in (prefill, decode):
            got = engine.calls[0].headers
            assert (got["authorization"], got["x-request-id"], got["traceparent"]) == ("Bearer k", "r", "00-1-2-03")
            assert "cookie" not in got


async def test_the_plan_of_the_policy_is_the_plan_on_the_request() -> None:
    async with routed_pair() as (router, prefill, decode):
        for prefill_queue, decode_queue, side in ((500, 10, "decode"), (10, 500, "prefill")):
            router.report(prefill, read_q_tokens=prefill_queue)
            router.report(decode, read_q_tokens=decode_queue)
            await posted(router, text="hi")
            plan = from_kv_hints(decode.bodies[-1]["kv_hints"])
            assert plan is not None and plan.read_side == side
        assert router.metric("read_side_total", side="decode") == 1
        assert router.metric("read_side_total", side="prefill") == 1


async def test_a_plan_that_comes_with_the_request_holds_and_is_accounted_for() -> None:
    async with routed_pair() as (router, prefill, decode):
        await posted(router, text="first")
        hints = prefill.bodies[0]["kv_hints"]
        hints["actions"][0]["payload"]["read_side"] = "decode"
        prefill.behaviour = decode.behaviour = hangs
        request = asyncio.create_task(posted(router, input_ids=[1] * 50, kv_hints=hints))
        await until(lambda: len(decode.calls) == 2)
        assert decode.bodies[1]["kv_hints"] == hints
        assert router.service.core.scheduler.cluster.engines[decode.url].node.read_q_tokens == 50
        request.cancel()


async def test_concurrent_requests_may_share_a_correlation_id() -> None:
    async with routed_pair() as (router, _prefill, decode):
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
    async with routed_pair() as (router, _prefill, decode):
        decode.behaviour = streams(RAW_CHUNKS)
        async with router.client.post(router.url + "/generate", json={"text": "a", "stream": True}) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert await response.read() == b"".join(RAW_CHUNKS)
        assert router.metric("requests_total", outcome="ok") == 1


async def test_a_chunk_arrives_before_the_next_one_is_made() -> None:
    async with routed_pair() as (router, _prefill, decode):
        go_on = asyncio.Event()
        decode.behaviour = streams(RAW_CHUNKS, go_on)
        async with router.client.post(router.url + "/generate", json={"text": "a", "stream": True}) as response:
            assert await response.content.readexactly(len(RAW_CHUNKS[0])) == RAW_CHUNKS[0]
            go_on.set()
            assert await response.content.read() == b"".join(RAW_CHUNKS[1:])


async def test_a_large_stream_arrives_whole() -> None:
    chunks = [bytes([i % 251]) * 65_537 for i in range(100)]
    async with routed_pair() as (router, _prefill, decode):
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


# ---- the queue


async def test_requests_wait_for_a_prefill_engine_that_is_not_overloaded_in_order() -> None:
    async with routed_pair() as (router, prefill, _decode):
        router.report(prefill, tok=10**6)
        requests = []
        for i in range(3):
            requests.append(asyncio.create_task(posted(router, text=f"t{i}")))
            await until(lambda n=i: router.service.core.scheduler.n_waiting == n + 1)  # type: ignore[misc]
        assert not prefill.calls
        router.report(prefill, tok=0)
        assert [status for status, _ in await asyncio.gather(*requests)] == [200] * 3
        assert sorted(body["text"] for body in prefill.bodies) == ["t0", "t1", "t2"]


async def test_a_full_queue_is_a_429_at_once_and_names_its_flag() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], "--queue-size", "1") as router:
        router.report(prefill, tok=10**6)
        waiting = asyncio.create_task(posted(router, text="a"))
        await until(lambda: router.service.core.scheduler.n_waiting == 1)
        status, body = await posted(router, text="b")
        assert (status, "--queue-size" in message(body)) == (429, True)
        router.report(prefill, tok=0)
        assert (await waiting)[0] == 200
        assert router.metric("requests_total", outcome="queue_full") == 1


# ---- the rest


async def test_workers_shows_what_each_engine_is_and_does() -> None:
    async with routed_pair() as (router, prefill, decode):
        router.report(decode)
        decode.behaviour = hangs
        request = asyncio.create_task(posted(router, text="a"))
        await until(lambda: bool(decode.running) and router.in_flight() == 1)
        async with router.client.get(router.url + "/workers") as response:
            workers = (await response.json())["workers"]
        shown = ("url", "role", "bootstrap_port", "in_flight", "reports", "healthy", "circuit", "source")
        assert [tuple(worker[name] for name in shown) for worker in workers] == [
            (prefill.url, "prefill", 8998, 1, False, True, "closed", "flag"),
            (decode.url, "decode", None, 1, True, True, "closed", "flag"),
        ]
        request.cancel()


async def test_questions_about_the_model_are_answered_by_an_engine() -> None:
    async with routed_pair() as (router, _prefill, _decode):
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
    async with routed_pair() as (router, prefill, decode):
        async with router.client.post(router.url + "/flush_cache") as response:
            assert (response.status, await response.json()) == (200, {prefill.url: 200, decode.url: 200})
        await decode.stop()
        async with router.client.post(router.url + "/flush_cache") as response:
            assert (response.status, await response.json()) == (502, {prefill.url: 200, decode.url: 502})


async def test_metrics_are_in_prometheus_text() -> None:
    async with routed_pair() as (router, _prefill, _decode):
        await posted(router, text="a")
        async with router.client.get(router.url + "/metrics") as response:
            assert 'dualpath_router_requests_total{outcome="ok"} 1.0' in await response.text()

"""The router's HTTP front when engines fail, time runs out, or clients leave: nothing goes on, nothing is lost."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from test.unit.router.running_router import message, posted, probed, routed_pair, running_router
from test.unit.router.stub_engine import (
    Call,
    after,
    answers,
    default_behaviour,
    dies_at_once,
    hangs,
    streams,
    stub_engines,
    until,
)

pytestmark = pytest.mark.asyncio


# ---- failures


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prefill_error_reaches_the_client_with_its_status(stream: bool) -> None:
    async with routed_pair() as (router, prefill, decode):
        prefill.behaviour = answers({"error": {"message": "the prompt is too long"}}, 400)
        decode.behaviour = hangs
        status, body = await posted(router, text="a", stream=stream)
        assert (status, message(body)) == (400, "the prompt is too long")
        assert not decode.running
        assert router.in_flight() == 0
        assert router.metric("requests_total", outcome="engine_error") == 1


async def test_a_decode_engine_killed_in_mid_stream_ends_it_with_an_error_event() -> None:
    async with routed_pair() as (router, _prefill, decode):
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
    async with routed_pair() as (router, _prefill, decode):
        decode.behaviour = dies_at_once
        for stream in (False, True):
            status, body = await posted(router, text="a", stream=stream)
            assert (status, decode.url in message(body)) == (502, True)
        assert router.in_flight() == 0


async def test_an_empty_stream_is_a_502() -> None:
    async with routed_pair() as (router, _prefill, decode):
        decode.behaviour = streams([])
        status, body = await posted(router, text="a", stream=True)
        assert status == 502
        assert "closed the stream without an answer" in message(body)


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
            assert not router.server(dead).healthy
            assert (await posted(router, text="a", stream=stream))[0] == 200
            assert router.metric("retries_total") == 1
            assert all(not engine.running for engine in engines)
            assert router.in_flight() == 0


async def test_a_retry_passes_over_the_refused_engine_even_if_it_counts_as_healthy_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stub_engines(3) as (dead, live, decode), running_router([dead, live], [decode]) as router:
        await probed(router, [dead, live, decode])
        router.report(live, tok=500)
        await dead.stop()
        monkeypatch.setattr(router.service.core.servers, "set_health", lambda *_: None)
        assert (await posted(router, text="a"))[0] == 200
        assert len(live.calls) == 1


async def test_a_retry_goes_to_the_same_decode_engine_while_that_still_aborts_the_first_attempt() -> None:
    async with (
        stub_engines(3) as (first, second, decode),
        running_router([first, second], [decode], "--policy", "round_robin") as router,
    ):
        await probed(router, [first, second, decode])
        await first.stop()
        status, _ = await posted(router, text="a")
        assert status == 200
        assert len({body["rid"] for body in decode.bodies}) == len(decode.bodies)


async def test_without_a_reachable_engine_the_answer_says_so_and_when_to_come_back() -> None:
    async with routed_pair() as (router, prefill, decode):
        await probed(router, [prefill, decode])
        await decode.stop()
        async with router.client.post(router.url + "/generate", json={"text": "a"}) as response:
            assert response.status == 503
            assert response.headers["retry-after"] == "1"
            assert "no healthy decode engine" in message(await response.read())
        async with router.client.get(router.url + "/health") as response:
            assert response.status == 503
            assert "no healthy decode engine" in message(await response.read())


async def test_a_request_past_its_time_is_a_504_and_aborted() -> None:
    async with routed_pair("--request-timeout-secs", "2") as (router, _prefill, decode):
        decode.behaviour = hangs
        status, body = await posted(router, text="a")
        assert (status, message(body)) == (504, "no answer within 2.0 s")
        assert not decode.running
        assert router.metric("requests_total", outcome="timeout") == 1


async def test_a_stream_past_its_time_ends_with_an_error_event() -> None:
    async with routed_pair("--request-timeout-secs", "2") as (router, _prefill, decode):
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
    async with routed_pair() as (router, prefill, decode):
        prefill.behaviour = decode.behaviour = hangs
        request = asyncio.create_task(posted(router, text="a", stream=stream))
        await until(lambda: bool(prefill.running and decode.running))
        request.cancel()
        await until(lambda: not prefill.running and not decode.running)
        await until(lambda: router.in_flight() == 0)
        await until(lambda: router.metric("requests_total", outcome="client_gone") == 1)
        assert router.metric("in_flight") == 0


async def test_a_client_that_leaves_in_mid_stream_aborts_the_decode_engine() -> None:
    async with routed_pair() as (router, _prefill, decode):
        decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], asyncio.Event())
        async with aiohttp.ClientSession() as client:
            response = await client.post(router.url + "/generate", json={"text": "a", "stream": True})
            assert await response.content.readexactly(9) == b"data: 1\n\n"
            response.close()
        await until(lambda: not decode.running)
        await until(lambda: router.in_flight() == 0)
        await until(lambda: router.metric("requests_total", outcome="client_gone") == 1)


async def test_a_client_that_leaves_while_waiting_gives_up_its_place() -> None:
    async with routed_pair() as (router, prefill, _decode):
        router.report(prefill, tok=10**6)
        request = asyncio.create_task(posted(router, text="a"))
        await until(lambda: router.service.core.scheduler.n_waiting == 1)
        request.cancel()
        await until(lambda: router.service.core.scheduler.n_waiting == 0)
        router.report(prefill, tok=0)
        assert (await posted(router, text="b"))[0] == 200
        assert [body["text"] for body in prefill.bodies] == ["b"]


# ---- engines that are lost, and come again


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_engine_dies_before_a_token_is_served_by_another(role: str, stream: bool) -> None:
    async with stub_engines(4) as (p0, p1, d0, d1), running_router([p0, p1], [d0, d1]) as router:
        # Of two idle engines the first one is taken.
        victim = p0 if role == "prefill" else d0
        victim.behaviour = dies_at_once
        if role == "prefill":
            # Without a prefill engine's KV no decode engine would answer.
            prefilled = asyncio.Event()

            async def prefills(call: Call) -> web.StreamResponse:
                prefilled.set()
                return await default_behaviour(call)

            p1.behaviour = prefills
            d0.behaviour = d1.behaviour = after(prefilled, default_behaviour)
        for _ in range(3):
            status, body = await posted(router, text="a", stream=stream)
            assert (status, bool(body)) == (200, True)
        await until(lambda: router.in_flight() == 0)
        assert router.metric("retries_total") >= 1


async def test_without_retries_it_is_an_error() -> None:
    async with stub_engines(3) as (prefill, d0, d1), running_router([prefill], [d0, d1], "--disable-retries") as router:
        d0.behaviour = d1.behaviour = dies_at_once
        status, body = await posted(router, text="a")
        assert (status, "went away" in message(body)) == (502, True)
        assert router.metric("retries_total") == 0


async def test_a_request_on_an_engine_found_dead_is_served_by_another() -> None:
    """It accepts connections and answers nothing; its health check tells."""
    async with stub_engines(3) as (prefill, d0, d1), running_router([prefill], [d0, d1]) as router:
        d0.behaviour = hangs
        running = asyncio.create_task(posted(router, text="a"))
        await until(lambda: bool(d0.running))
        router.service.core.servers.set_health(router.server(d0), False)
        assert (await running)[0] == 200
        assert len(d1.calls) == 1
        await until(lambda: not d0.running)


async def test_failures_in_a_row_open_the_circuit_and_a_good_trial_closes_it() -> None:
    flags = ("--cb-failure-threshold", "2", "--cb-success-threshold", "1", "--cb-timeout-duration-secs", "0.2")
    async with routed_pair(*flags) as (router, _prefill, decode):
        good, decode.behaviour = decode.behaviour, answers({"error": {"message": "no"}}, 500)
        for _ in range(2):
            assert (await posted(router, text="a"))[0] == 500
        assert router.server(decode).breaker.n_opened == 1
        assert (await posted(router, text="a"))[0] == 503
        decode.behaviour = good
        await asyncio.sleep(0.25)
        router.service.core.servers.refresh()
        assert (await posted(router, text="a"))[0] == 200
        assert (await posted(router, text="a"))[0] == 200


async def test_an_engines_refusal_of_a_request_opens_no_circuit() -> None:
    async with routed_pair("--cb-failure-threshold", "1") as (router, _prefill, decode):
        decode.behaviour = answers({"error": {"message": "no"}}, 400)
        for _ in range(3):
            assert (await posted(router, text="a"))[0] == 400
        assert router.server(decode).breaker.n_opened == 0

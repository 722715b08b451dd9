"""One request on a pair of engines: both get the same, either may fail, and neither goes on when the client does not."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from sglang_dualpath.router.exchange import EngineFailed, EnginePair, PairExchange, Unreachable
from sglang_dualpath.router.prompt.body import read
from sglang_dualpath.router.prompt.prepared import Rendezvous, prepare
from sglang_dualpath.telemetry.plan import PLAN_HEADER, ReadPlan

from test.unit.router.running_router import refused_url
from test.unit.router.stub_engine import (
    StubEngine,
    after,
    answers,
    dies_at_once,
    events,
    generated,
    hangs,
    streams,
    stub_engines,
    until,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[list[StubEngine]]:
    """A prefill engine and a decode engine."""
    async with stub_engines(2) as engines:
        yield engines


def exchange_on(
    session: aiohttp.ClientSession,
    prefill_url: str,
    decode_url: str,
    headers: dict[str, str] | None = None,
    **body: Any,
) -> PairExchange:
    """A request for these two engines."""
    sent = read(json.dumps({"text": "hello", **body}).encode())
    prepared = prepare(sent, Rendezvous(prefill_url, 8998), ReadPlan(read_side="decode", plan_id="r1"))
    return PairExchange(session, EnginePair(prefill_url, decode_url), "/generate", prepared, headers or {})


async def served(exchange: PairExchange, stream: bool, on_chunk: Callable[[bytes], object] | None = None) -> None:
    """Take the whole answer, chunk by chunk if it is a stream."""
    async with exchange:
        if not stream:
            await exchange.answer(merge_logprobs=False)
            return
        async for chunk in exchange.stream():
            if on_chunk is not None:
                on_chunk(chunk)


async def test_both_engines_get_the_same_body_and_the_plan_in_a_header(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    async with exchange_on(session, prefill.url, decode.url) as exchange:
        await exchange.answer(merge_logprobs=False)
    assert prefill.bodies == decode.bodies
    assert len(prefill.calls) == 1
    for call in (*prefill.calls, *decode.calls):
        assert json.loads(call.headers[PLAN_HEADER]) == call.body["kv_hints"]
        assert call.headers["content-type"] == "application/json"


async def test_the_decode_engines_answer_is_the_answer_byte_for_byte(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    prefill.behaviour = answers(generated("from prefill"))
    decode.behaviour = answers(generated("from decode \u00e9\U0001f600"))
    async with exchange_on(session, prefill.url, decode.url) as exchange:
        answer = await exchange.answer(merge_logprobs=False)
    assert answer.body == json.dumps(generated("from decode \u00e9\U0001f600")).encode()
    assert (answer.status, answer.content_type) == (200, "application/json; charset=utf-8")


async def test_a_finished_request_is_not_aborted(session: aiohttp.ClientSession, pair: list[StubEngine]) -> None:
    prefill, decode = pair
    async with exchange_on(session, prefill.url, decode.url) as exchange:
        await exchange.answer(merge_logprobs=False)
    async with exchange_on(session, prefill.url, decode.url, stream=True) as exchange:
        assert [chunk async for chunk in exchange.stream()]
    assert prefill.aborts == decode.aborts == []
    assert not prefill.running
    assert not decode.running


async def test_prefill_is_done_before_decode_is(session: aiohttp.ClientSession, pair: list[StubEngine]) -> None:
    prefill, decode = pair
    go_on = asyncio.Event()
    decode.behaviour = after(go_on, answers(generated("x")))
    prefilled = asyncio.Event()
    async with exchange_on(session, prefill.url, decode.url) as exchange:
        exchange.prefill_done = prefilled.set
        await prefilled.wait()
        go_on.set()
        assert (await exchange.answer(merge_logprobs=False)).status == 200


async def test_logprobs_of_the_prompt_come_from_the_prefill_engine(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    prefill.behaviour = answers({"text": "", "meta_info": {"input_token_logprobs": [[-1.0, 5]]}})
    decode.behaviour = answers({"text": "x", "meta_info": {"input_token_logprobs": [[-2.0, 6]], "id": "r"}})
    async with exchange_on(session, prefill.url, decode.url, return_logprob=True) as exchange:
        answer = await exchange.answer(merge_logprobs=True)
    assert json.loads(answer.body) == {
        "text": "x",
        "meta_info": {"input_token_logprobs": [[-1.0, 5], [-2.0, 6]], "id": "r"},
    }


# ---- failures of an engine


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_prefill_error_is_the_answer_while_decode_waits(
    session: aiohttp.ClientSession, pair: list[StubEngine], status: int
) -> None:
    prefill, decode = pair
    prefill.behaviour = answers({"error": {"message": "no room"}}, status)
    decode.behaviour = hangs
    with pytest.raises(EngineFailed) as failure:
        async with exchange_on(session, prefill.url, decode.url) as exchange:
            await exchange.answer(merge_logprobs=False)
    assert failure.value.answer.status == status
    assert json.loads(failure.value.answer.body) == {"error": {"message": "no room"}}
    assert not decode.running


async def test_an_error_event_in_prefills_stream_is_the_answer(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    prefill.behaviour = streams(events({"error": {"message": "too long", "code": 400}}))
    decode.behaviour = hangs
    with pytest.raises(EngineFailed) as failure:
        async with exchange_on(session, prefill.url, decode.url, stream=True) as exchange:
            await anext(exchange.stream())
    assert failure.value.answer.status == 400
    assert json.loads(failure.value.answer.body) == {"error": {"message": "too long", "code": 400}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_error_is_the_answer_and_ends_the_prefill(
    session: aiohttp.ClientSession, pair: list[StubEngine], stream: bool
) -> None:
    prefill, decode = pair
    prefill.behaviour = hangs
    decode.behaviour = after_call_on(prefill, answers({"error": {"message": "full"}}, 503))
    async with exchange_on(session, prefill.url, decode.url, stream=stream) as exchange:
        if stream:
            with pytest.raises(EngineFailed) as failure:
                await anext(exchange.stream())
            answer = failure.value.answer
        else:
            answer = await exchange.answer(merge_logprobs=False)
    assert (answer.status, json.loads(answer.body)) == (503, {"error": {"message": "full"}})
    assert not prefill.running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dead", ["prefill", "decode"])
async def test_an_engine_that_dies_is_named_in_the_error_and_the_other_is_freed(
    session: aiohttp.ClientSession, pair: list[StubEngine], dead: str, stream: bool
) -> None:
    prefill, decode = pair
    victim, other = (prefill, decode) if dead == "prefill" else (decode, prefill)
    other.behaviour = hangs
    victim.behaviour = after_call_on(other, dies_at_once)
    with pytest.raises(EngineFailed) as failure:
        await served(exchange_on(session, prefill.url, decode.url, stream=stream), stream)
    assert failure.value.answer.status == 502
    assert f"{dead} engine {victim.url}" in json.loads(failure.value.answer.body)["error"]["message"]
    assert not other.running


async def test_a_decode_engine_killed_in_mid_stream_is_an_error_after_its_chunks(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    go_on = asyncio.Event()
    decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], go_on, then_die=True)
    received: list[bytes] = []

    def note(chunk: bytes) -> None:
        received.append(chunk)
        go_on.set()

    with pytest.raises(EngineFailed) as failure:
        await served(exchange_on(session, prefill.url, decode.url, stream=True), True, note)
    assert b"".join(received).startswith(b"data: 1\n\n")
    assert decode.url in json.loads(failure.value.answer.body)["error"]["message"]


async def test_a_prefill_engine_that_fails_ends_a_stream_that_has_begun(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    prefill, decode = pair
    go_on = asyncio.Event()
    prefill.behaviour = after(go_on, dies_at_once)
    decode.behaviour = streams([b"data: 1\n\n", b"data: 2\n\n"], asyncio.Event())
    with pytest.raises(EngineFailed) as failure:
        await served(exchange_on(session, prefill.url, decode.url, stream=True), True, lambda _: go_on.set())
    assert prefill.url in json.loads(failure.value.answer.body)["error"]["message"]
    assert not decode.running


@pytest.mark.parametrize("refused", ["prefill", "decode"])
async def test_a_refused_connection_is_unreachable_and_the_other_engine_is_freed(
    session: aiohttp.ClientSession, pair: list[StubEngine], refused: str
) -> None:
    live = pair[0]
    live.behaviour = hangs
    with refused_url() as url:
        urls = (url, live.url) if refused == "prefill" else (live.url, url)
        with pytest.raises(Unreachable) as failure:
            async with exchange_on(session, *urls) as exchange:
                await exchange.answer(merge_logprobs=False)
        assert failure.value.url == url
    assert not live.running


async def test_a_machine_that_does_not_answer_a_connect_is_unreachable(pair: list[StubEngine]) -> None:
    """A crashed node refuses nothing: its packets are just lost. A full backlog is the same to a client."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=0.3)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with aiohttp.ClientSession(timeout=timeout) as session:
            with pytest.raises(Unreachable) as failure:
                async with exchange_on(session, pair[0].url, url) as exchange:
                    await exchange.answer(merge_logprobs=False)
    assert failure.value.url == url


# ---- leaving early


@pytest.mark.parametrize("batch", [False, True])
async def test_leaving_early_aborts_every_prompt_on_both_engines(
    session: aiohttp.ClientSession, pair: list[StubEngine], batch: bool
) -> None:
    for engine in pair:
        engine.behaviour = hangs
    async with exchange_on(session, *(e.url for e in pair), text=["a", "b", "c"] if batch else "a"):
        await until(lambda: all(len(engine.running) == (3 if batch else 1) for engine in pair))
    assert [engine.running for engine in pair] == [{}, {}]


async def test_a_batch_with_ids_of_the_client_is_aborted_by_them(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    for engine in pair:
        engine.behaviour = hangs
    async with exchange_on(session, *(e.url for e in pair), text=["a", "b"], rid=["x", "y"]):
        await until(lambda: all(set(engine.running) == {"x", "y"} for engine in pair))
    assert [engine.running for engine in pair] == [{}, {}]


async def test_an_abort_carries_the_clients_authorization(
    session: aiohttp.ClientSession, pair: list[StubEngine]
) -> None:
    for engine in pair:
        engine.behaviour = hangs
    async with exchange_on(session, *(e.url for e in pair), headers={"authorization": "Bearer k"}):
        await until(lambda: all(engine.running for engine in pair))
    assert [[headers["authorization"] for _, headers in engine.aborts] for engine in pair] == [["Bearer k"]] * 2


async def test_an_abort_that_an_engine_does_not_take_is_logged(
    session: aiohttp.ClientSession, pair: list[StubEngine], caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = pair
    prefill.behaviour = decode.behaviour = hangs
    async with exchange_on(session, prefill.url, decode.url):
        await until(lambda: bool(prefill.running and decode.running))
        await prefill.stop()
    assert f"abort on {prefill.url}" in caplog.text
    await until(lambda: not decode.running)


def after_call_on(other: StubEngine, behaviour: Any) -> Any:
    """Behave so once the other engine has got the request too."""

    async def behave(call: Any) -> Any:
        await until(lambda: bool(other.calls))
        return await behaviour(call)

    return behave

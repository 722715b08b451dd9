"""The router's HTTP front and what it must refuse: bodies that are none, fields it cannot extend, wrong keys."""

import asyncio
from typing import Any

import aiohttp
import pytest

from test.unit.router.running_router import message, posted, routed_pair, running_router
from test.unit.router.stub_engine import hangs, stub_engines, until

pytestmark = pytest.mark.asyncio


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
    ],
    ids=["empty", "cut", "list", "string", "null", "bytes", "deep"],
)
async def test_a_body_that_is_no_json_object_is_a_400_and_reaches_no_engine(data: bytes) -> None:
    async with routed_pair() as (router, prefill, decode):
        async with router.client.post(router.url + "/generate", data=data) as response:
            assert response.status == 400
            assert "malformed request" in message(await response.read())
        assert not prefill.calls
        assert not decode.calls
        assert router.metric("requests_total", outcome="bad_request") == 1


@pytest.mark.parametrize("depth", [700, 980, 5000])
async def test_messages_nested_beyond_reason_are_no_failure_of_the_router(depth: int) -> None:
    deep = b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"
    async with routed_pair() as (router, _prefill, _decode):
        async with router.client.post(router.url + "/v1/chat/completions", data=deep) as response:
            assert response.status in (200, 400)
        assert router.in_flight() == 0


@pytest.mark.parametrize("body", [{"text": "a", "kv_hints": 5}, {"text": ["a", "b"], "rid": ["one"]}])
async def test_a_field_the_router_cannot_extend_is_a_400_that_names_it(body: dict[str, Any]) -> None:
    async with routed_pair() as (router, _prefill, _decode):
        status, answer = await posted(router, **body)
        assert status == 400
        assert ("kv_hints" if "kv_hints" in body else "rid") in message(answer)
        assert router.in_flight() == 0


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with routed_pair("--max-payload-size", "1000") as (router, prefill, _decode):
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

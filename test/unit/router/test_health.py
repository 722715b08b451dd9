"""Asking engines whether they live: a late answer is a busy engine, no connection is a dead one."""

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from sglang_dualpath.router import health
from sglang_dualpath.router.fleet import Fleet

from test.unit.router.running_router import refused_url
from test.unit.router.stub_engine import stub_engines, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def healthy_after_probe(session: aiohttp.ClientSession, url: str, before: bool = True) -> bool:
    """What a probe makes of one engine."""
    fleet = Fleet()
    fleet.add(url, "decode").healthy = before
    await health.probe_all(fleet, session)
    return fleet.engine(url).healthy


async def test_an_engine_that_says_so_is_healthy(session: aiohttp.ClientSession) -> None:
    async with stub_engines(1) as (engine,):
        assert await healthy_after_probe(session, engine.url, before=False)


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_an_engine_that_denies_it_is_not(session: aiohttp.ClientSession, status: int) -> None:
    async with stub_engines(1) as (engine,):
        engine.health_status = status
        assert not await healthy_after_probe(session, engine.url)


async def test_an_engine_that_refuses_connections_is_not(session: aiohttp.ClientSession) -> None:
    with refused_url() as url:
        assert not await healthy_after_probe(session, url)


@pytest.mark.parametrize("before", [True, False])
async def test_an_engine_that_answers_late_is_what_it_was(
    session: aiohttp.ClientSession, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert await healthy_after_probe(session, url, before) == before


async def test_a_machine_that_does_not_answer_a_connect_is_not_healthy(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        assert not await healthy_after_probe(session, f"http://127.0.0.1:{full.getsockname()[1]}")


@pytest.mark.parametrize("url", ["http://a..b:1", "http://127.0.0.1:99999"])
async def test_one_url_that_cannot_be_asked_does_not_end_the_asking_of_others(
    session: aiohttp.ClientSession, url: str
) -> None:
    async with stub_engines(1) as (engine,):
        fleet = Fleet()
        fleet.add(url, "prefill")
        fleet.add(engine.url, "decode").healthy = False
        await health.probe_all(fleet, session)
        assert [known.healthy for known in fleet.engines()] == [False, True]


async def test_an_engine_that_comes_back_is_noticed(session: aiohttp.ClientSession) -> None:
    async with stub_engines(1) as (engine,):
        fleet = Fleet()
        fleet.add(engine.url, "decode")
        watcher = asyncio.create_task(health.watch(fleet, session, 0.02))
        await engine.stop()
        await until(lambda: not fleet.engine(engine.url).healthy)
        await engine.start()
        await until(lambda: fleet.engine(engine.url).healthy)
        watcher.cancel()

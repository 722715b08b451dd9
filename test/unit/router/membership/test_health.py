"""Asking servers whether they live: a late answer is a busy engine, no connection is a dead one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio
from sglang_dualpath.router.membership import health
from sglang_dualpath.router.membership.health import HealthSettings
from sglang_dualpath.router.membership.servers import Servers

from test.unit.router.membership.fleet import Fleet
from test.unit.router.running_router import refused_url
from test.unit.router.stub_engine import stub_engines, until

pytestmark = pytest.mark.asyncio

ONCE = HealthSettings(failure_threshold=1)


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def healthy_after(
    session: aiohttp.ClientSession, url: str, before: bool = True, settings: HealthSettings = ONCE, probes: int = 1
) -> bool:
    """What some probes make of one server."""
    servers = Fleet().servers
    server = servers.add(url, "decode", "flag")
    servers.set_health(server, before)
    for _ in range(probes):
        await health.probe_all(servers, session, settings)
    return server.healthy


async def test_a_server_that_says_so_is_healthy(session: aiohttp.ClientSession) -> None:
    async with stub_engines(1) as (engine,):
        assert await healthy_after(session, engine.url, before=False)


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_a_server_that_denies_it_is_not(session: aiohttp.ClientSession, status: int) -> None:
    async with stub_engines(1) as (engine,):
        engine.health_status = status
        assert not await healthy_after(session, engine.url)


@pytest.mark.parametrize(("probes", "healthy"), [(1, True), (2, True), (3, False)])
async def test_it_takes_as_many_failed_probes_as_asked_for(
    session: aiohttp.ClientSession, probes: int, healthy: bool
) -> None:
    async with stub_engines(1) as (engine,):
        engine.health_status = 500
        settings = replace(ONCE, failure_threshold=3)
        assert await healthy_after(session, engine.url, settings=settings, probes=probes) == healthy


@pytest.mark.parametrize(("probes", "healthy"), [(1, False), (2, True)])
async def test_it_takes_as_many_good_probes_as_asked_for(
    session: aiohttp.ClientSession, probes: int, healthy: bool
) -> None:
    async with stub_engines(1) as (engine,):
        settings = replace(ONCE, success_threshold=2)
        assert await healthy_after(session, engine.url, False, settings, probes) == healthy


async def test_a_server_that_refuses_connections_is_out_at_once(session: aiohttp.ClientSession) -> None:
    with refused_url() as url:
        assert not await healthy_after(session, url, settings=replace(ONCE, failure_threshold=9))


@pytest.mark.parametrize("before", [True, False])
async def test_a_server_that_answers_late_is_what_it_was(session: aiohttp.ClientSession, before: bool) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert await healthy_after(session, url, before, replace(ONCE, timeout_s=0.2)) == before


async def test_a_machine_that_does_not_answer_a_connect_is_not_healthy(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        assert not await healthy_after(session, f"http://127.0.0.1:{full.getsockname()[1]}")


@pytest.mark.parametrize("url", ["http://a..b:1", "http://127.0.0.1:99999"])
async def test_one_url_that_cannot_be_asked_does_not_end_the_asking_of_others(
    session: aiohttp.ClientSession, url: str
) -> None:
    async with stub_engines(1) as (engine,):
        servers: Servers = Fleet().servers
        servers.add(url, "prefill", "flag")
        servers.add(engine.url, "decode", "flag")
        await health.probe_all(servers, session, ONCE)
        assert [known.healthy for known in servers.all()] == [False, True]


async def test_a_server_that_comes_back_is_noticed(session: aiohttp.ClientSession) -> None:
    async with stub_engines(1) as (engine,):
        servers = Fleet().servers
        server = servers.add(engine.url, "decode", "flag")
        watcher = asyncio.create_task(health.watch(servers, session, replace(ONCE, interval_s=0.02)))
        await until(lambda: server.healthy)
        await engine.stop()
        await until(lambda: not server.healthy)
        await engine.start()
        await until(lambda: server.healthy)
        watcher.cancel()

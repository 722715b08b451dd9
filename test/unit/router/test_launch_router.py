"""The router as users start it: a process of its own."""

import asyncio
import contextlib
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import psutil
import pytest
import zmq
import zmq.asyncio
from sglang_dualpath.demo.process import free_port
from sglang_dualpath.telemetry.report import ReportAck, decode_ack, encode

from test.unit.router.running_router import report_of
from test.unit.router.stub_engine import after, answers, generated, hangs, stub_engines, until

pytestmark = pytest.mark.asyncio


def free_ports(n: int) -> list[int]:
    """Ports that nobody listens on now."""
    return [free_port() for _ in range(n)]


async def started(port: int, control_port: int, *flags: str) -> Process:
    """A router process."""
    argv = ["--pd-disaggregation", "--port", str(port), "--control-host", "127.0.0.1"]
    argv += ["--control-port", str(control_port), *flags]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sglang_dualpath.launch_router", *argv, stdout=PIPE, stderr=PIPE
    )


@contextlib.asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[tuple[Process, str, int]]:
    """A router that answers; its URL and its control port."""
    port, control_port = free_ports(2)
    process = await started(port, control_port, *flags)
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as client, asyncio.timeout(60):
            while True:
                assert process.returncode is None, (await process.communicate())[1].decode()
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(url + "/liveness"):
                        break
                await asyncio.sleep(0.02)
        yield process, url, control_port
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_engines_that_report_are_used_and_a_stopped_router_lets_requests_finish() -> None:
    async with stub_engines(2) as (prefill, decode), serving() as (process, url, control_port):
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as engine:
            engine.setsockopt(zmq.LINGER, 0)
            engine.connect(f"tcp://127.0.0.1:{control_port}")
            for n, report in enumerate((report_of(prefill.url, "prefill"), report_of(decode.url, "decode")), start=1):
                await engine.send(encode(report))
                assert decode_ack(await engine.recv()) == ReportAck(sequence=n)
        go_on = asyncio.Event()
        decode.behaviour = after(go_on, answers(generated("done")))
        async with aiohttp.ClientSession() as client:
            request = asyncio.create_task(client.post(url + "/generate", json={"text": "a"}))
            await until(lambda: bool(decode.running))
            process.send_signal(signal.SIGTERM)
            await until(lambda: not _listens(url))
            go_on.set()
            async with await request as response:
                assert (response.status, (await response.json())["text"]) == (200, "done")
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def test_a_client_that_leaves_aborts_both_engines() -> None:
    async with stub_engines(2) as (prefill, decode):
        prefill.behaviour = decode.behaviour = hangs
        flags = ("--prefill", prefill.url, "--decode", decode.url)
        async with serving(*flags) as (_, url, _), aiohttp.ClientSession() as client:
            request = asyncio.create_task(client.post(url + "/generate", json={"text": "a"}))
            await until(lambda: bool(prefill.running and decode.running))
            request.cancel()
            await until(lambda: not prefill.running and not decode.running)


@pytest.mark.parametrize("taken", ["--port", "--control-port"])
async def test_a_port_in_use_is_one_sentence_that_names_its_flag(taken: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        in_use = holder.getsockname()[1]
        (free,) = free_ports(1)
        ports = (in_use, free) if taken == "--port" else (free, in_use)
        process = await started(*ports)
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().strip().splitlines()[-1].startswith(f"{taken} {in_use} on 127.0.0.1: ")
    assert "Traceback" not in errors.decode()


# ---- several front processes


async def test_fronts_share_the_port_and_one_core() -> None:
    async with stub_engines(2) as (prefill, decode):
        flags = ("--prefill", prefill.url, "--decode", decode.url, "--fronts", "2")
        async with serving(*flags) as (process, url, _), aiohttp.ClientSession() as client:
            async with client.post(url + "/flush_cache") as response:
                assert (response.status, await response.json()) == (200, {prefill.url: 200, decode.url: 200})
            for stream in (False, True) * 6:
                # A connection of its own for each, so that both processes get some.
                async with aiohttp.ClientSession() as other:
                    body = {"text": "a", "stream": stream}
                    async with other.post(url + "/generate", json=body) as response:
                        assert (response.status, bool(await response.read())) == (200, True)
            async with client.post(url + "/generate", data=b"{") as response:
                assert response.status == 400
            await until_async(lambda: counted(client, url, "ok", 12))
            assert await counted(client, url, "bad_request", 1)
            async with client.get(url + "/workers") as response:
                assert [worker["in_flight"] for worker in (await response.json())["workers"]] == [0, 0]
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await process.wait() == 0
        assert not _listens(url)


async def test_a_client_that_leaves_a_front_aborts_both_engines() -> None:
    async with stub_engines(2) as (prefill, decode):
        prefill.behaviour = decode.behaviour = hangs
        flags = ("--prefill", prefill.url, "--decode", decode.url, "--fronts", "2")
        async with serving(*flags) as (_, url, _), aiohttp.ClientSession() as client:
            request = asyncio.create_task(client.post(url + "/generate", json={"text": "a"}))
            await until(lambda: bool(prefill.running and decode.running))
            request.cancel()
            await until(lambda: not prefill.running and not decode.running)
            await until_async(lambda: counted(client, url, "client_gone", 1))


async def test_an_engine_found_dead_ends_what_fronts_have_on_it() -> None:
    async with stub_engines(2) as (prefill, decode):
        decode.behaviour = hangs
        flags = (
            "--prefill",
            prefill.url,
            "--decode",
            decode.url,
            "--fronts",
            "2",
            "--health-check-interval-secs",
            "0.1",
        )
        async with serving(*flags) as (_, url, _), aiohttp.ClientSession() as client:
            request = asyncio.create_task(client.post(url + "/generate", json={"text": "a"}))
            await until(lambda: bool(decode.running))
            decode.health_status = 500
            async with await request as response:
                assert response.status == 502
                assert decode.url in (await response.json())["error"]["message"]


async def test_a_front_that_dies_ends_the_router() -> None:
    async with serving("--fronts", "2") as (process, _, _):
        front = next(
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        )
        front.kill()
        async with asyncio.timeout(60):
            assert await process.wait() == 1


async def counted(client: aiohttp.ClientSession, url: str, outcome: str, n: int) -> bool:
    """Whether so many requests have ended so."""
    async with client.get(url + "/metrics") as response:
        return f'dualpath_router_requests_total{{outcome="{outcome}"}} {n}.0' in await response.text()


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)


def _listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0

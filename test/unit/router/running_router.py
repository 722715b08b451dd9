"""A router in the test's own event loop, served as `launch_router` serves it."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import aiohttp
from aiohttp import web
from sglang_dualpath.router.arguments import parse
from sglang_dualpath.router.membership.server import Server
from sglang_dualpath.router.service import RouterService
from sglang_dualpath.telemetry.report import EngineReport

from test.unit.router.stub_engine import StubEngine, stub_engines, until

BOOTSTRAP_PORT = 8998
SELDOM_S = "3600"


class RunningRouter:
    """The router's address, its insides, and a client for it."""

    def __init__(self, service: RouterService, url: str, client: aiohttp.ClientSession) -> None:
        self.service = service
        self.url = url
        self.client = client

    def in_flight(self) -> int:
        """How many requests the fleet counts on its engines."""
        return sum(engine.own_seq for engine in self.service.core.scheduler.cluster.engines.values())

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where it has not been counted."""
        return self.service.core.metrics.registry.get_sample_value(f"dualpath_router_{name}", labels) or 0.0

    def server(self, engine: StubEngine) -> Server:
        """The router's view of an engine."""
        server = self.service.core.servers.get(engine.url)
        assert server is not None
        return server

    def report(self, engine: StubEngine, **changes: object) -> None:
        """Let an engine report, as if over the control socket."""
        self.service.core.take_report(report_of(engine.url, self.server(engine).role, **changes))


def report_of(url: str, role: str, **changes: object) -> EngineReport:
    """The report of an idle engine that has both paths."""
    fields: dict[str, object] = {
        "engine_id": url,
        "role": role,
        "node_id": f"node of {url}",
        "url": url,
        "dp_rank": 0,
        "kv_path": "dual",
        "bootstrap_port": BOOTSTRAP_PORT if role == "prefill" else None,
        "seq": 0,
        "tok": 0,
        "read_q_tokens": 0,
        "free_kv_tokens": 100_000,
        "free_buffer_tokens": 100_000,
        "alpha_tokens": 10_000,
        "beta_tokens": 10_000,
        "sent_at_s": 0.0,
    }
    return EngineReport(**{**fields, **changes})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running_router(
    prefill: Sequence[StubEngine], decode: Sequence[StubEngine], *flags: str, wait: bool = True
) -> AsyncIterator[RunningRouter]:
    """A router over these engines, started with these flags besides. It probes them once, then seldom; with `wait`, it is
    ready."""
    argv = ["--pd-disaggregation", "--control-host", "127.0.0.1", "--control-port", "0"]
    for engine in prefill:
        argv += ["--prefill", engine.url, str(BOOTSTRAP_PORT)]
    for engine in decode:
        argv += ["--decode", engine.url]
    argv += ["--health-check-interval-secs", SELDOM_S, *flags]
    service = RouterService(parse(argv))
    runner = web.AppRunner(service.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as client:
            router = RunningRouter(service, url, client)
            if wait and prefill and decode:
                await probed(router, [*prefill, *decode])
            yield router
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def refused_url() -> Iterator[str]:
    """A URL whose port refuses connections, and that nobody else can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextlib.asynccontextmanager
async def routed_pair(*flags: str) -> AsyncIterator[tuple[RunningRouter, StubEngine, StubEngine]]:
    """A router started with these flags over a prefill and a decode engine."""
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], *flags) as router:
        yield router, prefill, decode


async def posted(router: RunningRouter, path: str = "/generate", **body: Any) -> tuple[int, bytes]:
    """Status and body of a request's answer."""
    async with router.client.post(router.url + path, json=body) as response:
        return response.status, await response.read()


def message(body: bytes) -> str:
    """The error message in an answer."""
    return json.loads(body)["error"]["message"]


async def probed(router: RunningRouter, engines: list[StubEngine]) -> None:
    """Wait until the router's first probe is over, so that it finds nothing out by itself afterwards."""
    await until(lambda: all(engine.n_probes > 0 for engine in engines))
    await until(lambda: all(router.server(engine).healthy for engine in engines))
    async with router.client.get(router.url + "/health") as response:
        assert response.status == 200

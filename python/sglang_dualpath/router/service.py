"""One router in one process: its core, its engines' reports, and its HTTP front."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

from sglang_dualpath.router.config import RouterConfig
from sglang_dualpath.router.control import ControlSocket
from sglang_dualpath.router.core.core import SchedulingCore
from sglang_dualpath.router.core.metrics import CoreMetrics
from sglang_dualpath.router.dashboard.page import Dashboard
from sglang_dualpath.router.front import openapi
from sglang_dualpath.router.front.access import check_keys
from sglang_dualpath.router.front.admin import Administration
from sglang_dualpath.router.front.errors import refuse
from sglang_dualpath.router.front.generation import Generation, GenerationSettings
from sglang_dualpath.router.membership import health
from sglang_dualpath.router.membership.servers import LimitOverrides
from sglang_dualpath.router.scheduling.build import build_scheduler

logger = logging.getLogger(__name__)

GENERATING_PATHS = ("/generate", "/v1/chat/completions", "/v1/completions")

IDLE_CONNECTION_S = 3.0
"""Less than the 5 s after which engines close an idle connection: a request sent into that moment would fail."""


def build_core(config: RouterConfig) -> SchedulingCore:
    """The scheduling core that the flags ask for, with the engines they name."""
    asked = config.scheduling
    scheduler = build_scheduler(asked.policy, asked.decode, asked.read_side, asked.knobs)
    limits = LimitOverrides(asked.alpha_tokens, asked.beta_tokens)
    core = SchedulingCore(scheduler, config.breaker, config.queue, CoreMetrics(), limits)
    for url, port in config.prefill:
        core.servers.add(url, "prefill", "flag", port)
    for url in config.decode:
        core.servers.add(url, "decode", "flag")
    return core


def engine_session(config: RouterConfig) -> aiohttp.ClientSession:
    """The HTTP client for engines."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
    headers = {"authorization": f"Bearer {config.keys.client}"} if config.keys.client else {}
    return aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers, read_bufsize=2**20)


def generation_settings(config: RouterConfig) -> GenerationSettings:
    """What the front needs of the flags."""
    return GenerationSettings(config.request_timeout_s, config.request_id_headers, config.retries)


async def refuse_embeddings(request: web.Request) -> web.Response:
    """Embeddings have no decode phase, so a pair of engines cannot make them."""
    return refuse(
        400,
        f"{request.path} is not served by prefill/decode engines: start a server with --is-embedding and ask it directly",
        "invalid_request_error",
    )


class RouterService:
    """See the module."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.core = build_core(config)
        self.generation = Generation(self.core, generation_settings(config))
        self.administration = Administration(self.core, config.drain_timeout_s)
        self.dashboard = Dashboard(self.core, config.scheduling.policy)

    def application(self) -> web.Application:
        """The aiohttp application; starts and stops the router's background work with it."""
        app = web.Application(client_max_size=self.config.max_payload_bytes, middlewares=[check_keys(self.config.keys)])
        for path in GENERATING_PATHS:
            app.router.add_post(path, self.generation.handle)
        app.router.add_post("/v1/embeddings", refuse_embeddings)
        app.router.add_routes(self.administration.routes())
        app.router.add_routes(self.dashboard.routes())
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/openapi.json", openapi.serve)
        app.cleanup_ctx.append(self._background)
        return app

    async def _background(self, app: web.Application) -> AsyncIterator[None]:
        control = ControlSocket(
            f"tcp://{self.config.control.host}:{self.config.control.port}",
            self.core.take_report,
            self.core.metrics.malformed_reports.inc,
            self.config.control.curve_secret,
        )
        session = engine_session(self.config)
        self.generation.session = self.administration.session = session
        tasks = [
            asyncio.create_task(control.run()),
            asyncio.create_task(health.watch(self.core.servers, session, self.config.health)),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self.dashboard.run()),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.administration.close()
        control.close()
        await session.close()

    async def _tick(self) -> None:
        """Some decisions come due by time alone: reports age, patience ends, circuits try again."""
        while True:
            await asyncio.sleep(1.0)
            self.core.servers.refresh()
            self.core.run()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.core.metrics.registry), content_type="text/plain")

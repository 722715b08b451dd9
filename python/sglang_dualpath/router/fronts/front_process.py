"""One front process: it serves generating requests itself, and passes all others on to the process of the core."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from sglang_dualpath.router import logs
from sglang_dualpath.router.config import RouterConfig
from sglang_dualpath.router.front.access import check_keys
from sglang_dualpath.router.front.errors import refuse
from sglang_dualpath.router.front.generation import Generation
from sglang_dualpath.router.front.tracing import export_to
from sglang_dualpath.router.fronts.remote_core import RemoteCore
from sglang_dualpath.router.service import GENERATING_PATHS, engine_session, generation_settings

logger = logging.getLogger(__name__)

HOP_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive", "host"})


class FrontService:
    """See the module."""

    def __init__(self, config: RouterConfig, link: Path, administration: Path) -> None:
        self._config = config
        self._link = link
        self._administration = administration
        self.core = RemoteCore()
        self._generation = Generation(self.core, generation_settings(config))
        self._session: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(
            client_max_size=self._config.max_payload_bytes, middlewares=[check_keys(self._config.keys)]
        )
        for path in GENERATING_PATHS:
            app.router.add_post(path, self._generation.handle)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        app.cleanup_ctx.append(self._background)
        return app

    async def _background(self, app: web.Application) -> AsyncIterator[None]:
        await self.core.connect(self._link)
        self._generation.session = engine_session(self._config)
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._administration)))
        yield
        await self._session.close()
        await self._generation.session.close()
        await self.core.close()

    async def _pass_on(self, request: web.Request) -> web.Response:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        url = f"http://core{request.path_qs}"
        try:
            async with self._session.request(
                request.method, url, data=await request.read(), headers=headers
            ) as response:
                back = {name: value for name, value in response.headers.items() if name.lower() not in HOP_HEADERS}
                return web.Response(status=response.status, body=await response.read(), headers=back)
        except aiohttp.ClientError:
            return refuse(503, "the router is stopping", "service_unavailable")


async def _serve(config: RouterConfig, link: Path, administration: Path) -> None:
    service = FrontService(config, link, administration)
    runner = web.AppRunner(
        service.application(), handler_cancellation=True, access_log=None, shutdown_timeout=config.shutdown_grace_s
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port, reuse_port=True, backlog=4096).start()
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(service.core.closed.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await runner.cleanup()


def run_front(config: RouterConfig, link: Path, administration: Path) -> None:
    """The process's main function."""
    logs.set_up(config.log_level, config.log_json)
    if config.otlp_endpoint is not None:
        export_to(config.otlp_endpoint)
    uvloop.run(_serve(config, link, administration))

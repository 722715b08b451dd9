"""`python -m sglang_dualpath.launch_router`: start the router."""

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvloop
import zmq
from aiohttp import web
from rich.console import Console

from sglang_dualpath.router import logs
from sglang_dualpath.router.arguments import parse
from sglang_dualpath.router.config import RouterConfig
from sglang_dualpath.router.control import ControlKeyError
from sglang_dualpath.router.dry_run.main import dry_run
from sglang_dualpath.router.dry_run.requests import TraceError
from sglang_dualpath.router.front.tracing import TracingUnavailable, export_to
from sglang_dualpath.router.fronts.front_process import run_front
from sglang_dualpath.router.fronts.serving import CoreServer
from sglang_dualpath.router.service import RouterService

logger = logging.getLogger(__name__)

FRONT_END_S = 5.0
"""How long a front process has, beyond the grace of its requests, before it is killed."""


class FrontEnded(RuntimeError):
    """A front process ended by itself: part of its port would answer no more."""


async def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, then give running requests the grace time. Raises FrontEnded."""
    service = RouterService(config)
    runner = web.AppRunner(
        service.application(), handler_cancellation=True, access_log=None, shutdown_timeout=config.shutdown_grace_s
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await runner.setup()
        async with _listening(config, service, runner, stop):
            logger.info(
                "router on http://%s:%d, policy %s, reports on tcp://%s:%d, page at /dashboard",
                config.host,
                config.port,
                config.scheduling.policy,
                config.control.host,
                config.control.port,
            )
            await stop.wait()
            logger.info("stopping: running requests have %.0f s", config.shutdown_grace_s)
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _listening(
    config: RouterConfig, service: RouterService, runner: web.AppRunner, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Clients are served: by this process, or by fronts of their own around its core."""
    if config.n_fronts == 1:
        await web.TCPSite(runner, config.host, config.port, backlog=4096).start()
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dualpath-router-") as directory, _held_port(config) as port_held:
        link, administration = Path(directory) / "core", Path(directory) / "administration"
        core_server = CoreServer(service.core)
        await core_server.start(link)
        await web.UnixSite(runner, str(administration)).start()
        context = multiprocessing.get_context("spawn")
        fronts = [
            context.Process(target=run_front, args=(config, link, administration), name=f"dualpath-front-{i}")
            for i in range(config.n_fronts)
        ]
        for front in fronts:
            front.start()
        port_held.close()
        watcher = asyncio.create_task(_first_ended(fronts, stop))
        try:
            yield
            if watcher.done():
                raise FrontEnded(watcher.result())
        finally:
            watcher.cancel()
            await asyncio.to_thread(_end_fronts, fronts, config.shutdown_grace_s + FRONT_END_S)
            await core_server.close()


@contextlib.contextmanager
def _held_port(config: RouterConfig) -> Iterator[socket.socket]:
    """The fronts share a port: one that others use is found here, before any of them starts. Raises OSError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((config.host, config.port))
        yield probe


async def _first_ended(fronts: "list[multiprocessing.context.SpawnProcess]", stop: asyncio.Event) -> str:
    """Wait for a front to end by itself, and stop the router then; says which."""
    while (gone := next((front for front in fronts if not front.is_alive()), None)) is None:
        await asyncio.sleep(0.5)
    stop.set()
    return f"{gone.name} ended with exit code {gone.exitcode}"


def _end_fronts(fronts: "list[multiprocessing.context.SpawnProcess]", within_s: float) -> None:
    for front in fronts:
        front.terminate()
    for front in fronts:
        front.join(within_s)
        if front.is_alive():
            front.kill()
            front.join()


def main() -> None:
    """The command line."""
    config = parse()
    logs.set_up(config.log_level, config.log_json)
    if config.dry_run is not None:
        try:
            dry_run(config.scheduling, config.dry_run, config.dry_run_fleet, Console())
        except (TraceError, OSError) as error:
            sys.exit(f"--dry-run: {error}")
        return
    try:
        if config.otlp_endpoint is not None:
            export_to(config.otlp_endpoint)
        uvloop.run(serve(config))
    except (TracingUnavailable, FrontEnded) as error:
        sys.exit(str(error))
    except zmq.ZMQError as error:
        sys.exit(f"--control-port {config.control.port} on {config.control.host}: {error}; choose another")
    except ControlKeyError as error:
        sys.exit(f"--control-curve-secret: {error}")
    except OSError as error:
        sys.exit(f"--port {config.port} on {config.host}: {error.strerror}; choose another")


if __name__ == "__main__":
    main()

"""`python -m sglang_dualpath.launch_router`: start the router."""

import asyncio
import logging
import signal
import sys

import zmq
from aiohttp import web

from sglang_dualpath.router.arguments import parse
from sglang_dualpath.router.config import RouterConfig
from sglang_dualpath.router.service import RouterService

logger = logging.getLogger(__name__)


async def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, then give running requests the grace time."""
    runner = web.AppRunner(
        RouterService(config).application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=config.shutdown_grace_s,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await runner.setup()
        await web.TCPSite(runner, config.host, config.port).start()
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


def main() -> None:
    """The command line."""
    config = parse()
    logging.basicConfig(level=config.log_level.upper(), format="[%(asctime)s] %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(config))
    except zmq.ZMQError as error:
        sys.exit(f"--control-port {config.control.port} on {config.control.host}: {error}; choose another")
    except OSError as error:
        sys.exit(f"--port {config.port} on {config.host}: {error.strerror}; choose another")


if __name__ == "__main__":
    main()

"""Asking servers whether they live."""

import asyncio
from dataclasses import dataclass

import aiohttp

from sglang_dualpath.router.membership.server import Server
from sglang_dualpath.router.membership.servers import Servers

CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """The flags `--health-*` that users of sglang_router know."""

    interval_s: float = 5.0
    timeout_s: float = 3.0
    failure_threshold: int = 2
    """Failed probes in a row that take a server out; a refused connection does at once."""
    success_threshold: int = 1
    heartbeat_timeout_s: float = 10.0


async def watch(servers: Servers, session: aiohttp.ClientSession, settings: HealthSettings) -> None:
    """Probe every server's `/health` each `interval_s`, until cancelled."""
    while True:
        await probe_all(servers, session, settings)
        servers.check_heartbeats(settings.heartbeat_timeout_s)
        servers.refresh()
        await asyncio.sleep(settings.interval_s)


async def probe_all(servers: Servers, session: aiohttp.ClientSession, settings: HealthSettings) -> None:
    """Probe every server once, all at the same time."""
    asked = servers.all()
    for server, found in zip(asked, await asyncio.gather(*(_probe(session, s, settings) for s in asked)), strict=True):
        note(servers, server, found, settings)


def note(servers: Servers, server: Server, found: str, settings: HealthSettings) -> None:
    """Count a probe's result and take the server in or out by the thresholds; `late` changes nothing."""
    if found == "well":
        server.health_failures = 0
        server.health_successes += 1
        if server.health_successes >= settings.success_threshold:
            servers.set_health(server, True)
    elif found != "late":
        server.health_successes = 0
        server.health_failures += 1
        if found == "unreachable" or server.health_failures >= settings.failure_threshold:
            servers.set_health(server, False)


async def _probe(session: aiohttp.ClientSession, server: Server, settings: HealthSettings) -> str:
    try:
        timeout = aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with session.get(f"{server.url}/health", timeout=timeout) as response:
            return "well" if response.status == 200 else "ill"
    except aiohttp.ConnectionTimeoutError:
        return "unreachable"
    except asyncio.TimeoutError:
        # A busy engine answers late; only one that cannot be connected to is dead.
        return "late"
    except (aiohttp.ClientError, ValueError):  # ValueError: a host name that cannot be encoded
        return "unreachable"

"""Asking engines whether they live."""

import asyncio

import aiohttp

from sglang_dualpath.router.fleet import Engine, Fleet

PROBE_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 2.0


async def watch(fleet: Fleet, session: aiohttp.ClientSession, interval_s: float) -> None:
    """Probe every engine's `/health` each `interval_s`, until cancelled."""
    while True:
        await probe_all(fleet, session)
        await asyncio.sleep(interval_s)


async def probe_all(fleet: Fleet, session: aiohttp.ClientSession) -> None:
    """Probe every engine once, all at the same time."""
    engines = fleet.engines()
    for engine, alive in zip(engines, await asyncio.gather(*(_probe(session, e) for e in engines)), strict=True):
        fleet.set_health(engine.url, alive)


async def _probe(session: aiohttp.ClientSession, engine: Engine) -> bool:
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with session.get(f"{engine.url}/health", timeout=timeout) as response:
            return response.status == 200
    except aiohttp.ConnectionTimeoutError:
        return False
    except asyncio.TimeoutError:
        # A busy engine answers late; only one that cannot be connected to is dead.
        return engine.healthy
    except (aiohttp.ClientError, ValueError):  # ValueError: a host name that cannot be encoded
        return False

"""Malformed requests made from the router's own description: refused or passed on, never a failure of the router.

`make fuzz-router` sends ten thousand to a router in a process of its own.
"""

from collections import Counter

import aiohttp
import pytest

from benchmark.router.malformed import Malformed
from test.unit.router.running_router import routed_pair
from test.unit.router.stub_engine import until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("seed", range(3))
async def test_none_of_them_breaks_anything(seed: int) -> None:
    async with routed_pair() as (router, prefill, decode), aiohttp.ClientSession() as client:
        async with client.get(router.url + "/openapi.json") as response:
            source = Malformed(await response.json(), seed)
        statuses: Counter[int] = Counter()
        for _ in range(150):
            statuses[await source.send(client, router.url)] += 1
        # Adding workers that are not there is well-formed: what then cannot be reached is not the router's failure.
        assert not [status for status in statuses if status >= 500 and status not in (502, 503)]
        assert statuses[200]
        assert statuses[400]
        await until(lambda: router.in_flight() == 0)
        assert not prefill.running
        assert not decode.running


async def test_the_description_names_every_endpoint() -> None:
    async with routed_pair() as (router, _prefill, _decode), aiohttp.ClientSession() as client:
        async with client.get(router.url + "/openapi.json") as response:
            paths = (await response.json())["paths"]
        for path in (
            "/generate",
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/workers",
            "/workers/{id}",
        ):
            assert path in paths
        for path, operations in paths.items():
            if "get" in operations and "{" not in path:
                async with client.get(router.url + path) as response:
                    assert response.status == 200, path

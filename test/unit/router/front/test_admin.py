"""The fleet's administration: servers join, drain and leave while requests go on."""

import asyncio
from typing import Any

import pytest

from test.unit.router.running_router import RunningRouter, message, posted, probed, routed_pair, running_router
from test.unit.router.stub_engine import StubEngine, hangs, stub_engines, until

pytestmark = pytest.mark.asyncio


async def asked(router: RunningRouter, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    async with router.client.request(method, router.url + path, **options) as response:
        return response.status, await response.json(content_type=None)


async def added(router: RunningRouter, engine: StubEngine, role: str, **fields: Any) -> dict[str, Any]:
    """Have an engine join, and wait until it is used."""
    status, worker = await asked(router, "POST", "/workers", json={"url": engine.url, "role": role, **fields})
    assert status == 202
    router.service.core.servers.set_health(router.server(engine), True)
    return dict(worker)


async def test_servers_join_a_router_that_was_started_without_any() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([], []) as router:
        assert (await posted(router, text="a"))[0] == 503
        await added(router, prefill, "prefill", bootstrap_port=9123)
        await added(router, decode, "decode")
        assert (await posted(router, text="a"))[0] == 200
        assert prefill.bodies[-1]["bootstrap_port"] == 9123


async def test_the_role_may_go_by_the_name_other_routers_give_it() -> None:
    async with stub_engines(1) as (engine,), running_router([], []) as router:
        body = {"url": engine.url, "worker_type": "decode", "model_id": "unknown fields are fine"}
        status, worker = await asked(router, "POST", "/workers", json=body)
        assert (status, worker["role"], worker["source"]) == (202, "decode", "admin")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "url"),
        ({"url": "10.0.0.1:1", "role": "decode"}, "10.0.0.1:1"),
        ({"url": "http://10.0.0.1:1"}, "role must be prefill or decode"),
        ({"url": "http://10.0.0.1:1", "role": "both"}, "role"),
        ({"url": "http://10.0.0.1:1", "role": "prefill", "bootstrap_port": 70_000}, "bootstrap_port 70000"),
    ],
)
async def test_a_server_that_cannot_join_is_refused_by_the_name_of_the_field(body: dict[str, Any], said: str) -> None:
    async with running_router([], []) as router:
        status, answer = await asked(router, "POST", "/workers", json=body)
        assert (status, said in answer["error"]["message"]) == (400, True)


async def test_a_server_known_in_its_other_role_is_a_conflict() -> None:
    async with routed_pair() as (router, prefill, _decode):
        status, _ = await asked(router, "POST", "/workers", json={"url": prefill.url, "role": "decode"})
        assert status == 409


async def test_one_server_is_found_by_its_id() -> None:
    async with routed_pair() as (router, prefill, _decode):
        _, every = await asked(router, "GET", "/workers")
        assert (every["total"], every["prefill"], every["decode"]) == (2, 1, 1)
        worker_id = every["workers"][0]["id"]
        assert await asked(router, "GET", f"/workers/{worker_id}") == (200, every["workers"][0])
        status, answer = await asked(router, "GET", "/workers/nobody")
        assert (status, "nobody" in answer["error"]["message"]) == (404, True)
        assert every["workers"][0]["url"] == prefill.url


async def test_a_removed_server_gets_nothing_new_and_stays_until_what_it_runs_has_ended() -> None:
    async with stub_engines(3) as (prefill, old, new), running_router([prefill], [old]) as router:
        old.behaviour = hangs
        running = asyncio.create_task(posted(router, text="a"))
        await until(lambda: bool(old.running))
        await added(router, new, "decode")
        status, worker = await asked(router, "DELETE", f"/workers/{router.server(old).id}")
        assert (status, worker["draining"]) == (202, True)
        for _ in range(4):
            assert (await posted(router, text="b"))[0] == 200
        assert len(old.calls) == 1
        assert router.service.core.servers.get(old.url) is not None
        running.cancel()
        await until(lambda: router.service.core.servers.get(old.url) is None)


async def test_adding_a_draining_server_again_keeps_it() -> None:
    async with routed_pair() as (router, _prefill, decode):
        decode.behaviour = hangs
        running = asyncio.create_task(posted(router, text="a"))
        await until(lambda: bool(decode.running))
        await asked(router, "DELETE", f"/workers/{router.server(decode).id}")
        await added(router, decode, "decode")
        running.cancel()
        await until(lambda: router.in_flight() == 0)
        await asyncio.sleep(0.3)
        assert not router.server(decode).draining


async def test_loads_are_those_the_scheduler_sees() -> None:
    async with routed_pair() as (router, prefill, decode):
        router.report(prefill, seq=3, tok=300, read_q_tokens=40)
        _, loads = await asked(router, "GET", "/get_loads")
        shown = {worker["worker"]: worker for worker in loads["workers"]}
        assert (shown[prefill.url]["load"], shown[prefill.url]["tokens"], shown[prefill.url]["read_q_tokens"]) == (
            3,
            300,
            40,
        )
        assert shown[decode.url]["load"] == 0
        assert loads["waiting"] == 0


async def test_embeddings_are_refused_with_what_to_do_instead() -> None:
    async with routed_pair() as (router, prefill, decode):
        status, body = await posted(router, "/v1/embeddings", input="a")
        assert (status, "--is-embedding" in message(body)) == (400, True)
        assert not prefill.calls
        assert not decode.calls


# ---- keys


async def test_administration_has_a_key_of_its_own() -> None:
    async with running_router([], [], "--api-key", "client", "--admin-api-key", "admin") as router:

        async def status(path: str, key: str | None) -> int:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return (await asked(router, "GET", path, headers=headers))[0]

        assert await status("/workers", "client") == 401
        assert await status("/workers", "admin") == 200
        assert await status("/dashboard/state", None) == 401
        assert await status("/dashboard/state?key=admin", None) == 200
        assert await status("/get_loads", "client") == 200
        assert await status("/get_loads", None) == 401


async def test_without_it_the_clients_key_is_asked_for() -> None:
    async with running_router([], [], "--api-key", "client") as router:
        headers = {"authorization": "Bearer client"}
        assert (await asked(router, "GET", "/workers"))[0] == 401
        assert (await asked(router, "GET", "/workers", headers=headers))[0] == 200


async def test_a_router_is_ready_once_its_engines_are() -> None:
    async with stub_engines(2) as (prefill, decode), running_router([prefill], [decode], wait=False) as router:
        await probed(router, [prefill, decode])
        assert (await asked(router, "GET", "/get_loads"))[0] == 200
        async with router.client.get(router.url + "/readiness") as response:
            assert response.status == 200

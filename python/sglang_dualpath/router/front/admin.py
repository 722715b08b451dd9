"""Questions about the fleet, and orders to it: `/workers`, `/health`, `/server_info`, `/get_loads`, `/flush_cache`, ..."""

import asyncio
import json
import logging
import time
from typing import Any, Literal

import aiohttp
import msgspec
from aiohttp import web

from sglang_dualpath.router.core.core import SchedulingCore
from sglang_dualpath.router.exchange import Answer, error_answer
from sglang_dualpath.router.front.errors import refuse, respond
from sglang_dualpath.router.membership.server import Server
from sglang_dualpath.router.membership.servers import RoleMismatch
from sglang_dualpath.router.scheduling.engine import Role
from sglang_dualpath.telemetry.engine_url import check_engine_url

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 30.0
DRAIN_POLL_S = 0.1


class WorkerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """The body of `POST /workers`."""

    url: str
    role: Literal["prefill", "decode"] | None = None
    worker_type: Literal["prefill", "decode"] | None = None
    """What other routers of SGLang call the role."""
    bootstrap_port: int | None = None


class Administration:
    """Handlers over one scheduling core."""

    def __init__(self, core: SchedulingCore, drain_timeout_s: float) -> None:
        self._core = core
        self._drain_timeout_s = drain_timeout_s
        self._drains: set[asyncio.Task[None]] = set()
        self.session: aiohttp.ClientSession | None = None

    def routes(self) -> list[web.RouteDef]:
        """Where each is served."""
        return [
            *(web.get(path, self.health) for path in ("/health", "/health_generate", "/readiness")),
            web.get("/liveness", self.liveness),
            *(web.get(path, self.ask_one) for path in ("/v1/models", "/get_model_info", "/model_info")),
            *(web.get(path, self.server_info) for path in ("/server_info", "/get_server_info")),
            *(web.get(path, self.loads) for path in ("/get_loads", "/get_load", "/v1/loads")),
            web.get("/flush_cache", self.flush),
            web.post("/flush_cache", self.flush),
            web.get("/workers", self.workers),
            web.post("/workers", self.add_worker),
            web.get("/workers/{id:.+}", self.worker),
            web.delete("/workers/{id:.+}", self.remove_worker),
        ]

    async def close(self) -> None:
        """Stop waiting for drains."""
        for task in self._drains:
            task.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)

    # ---- questions

    async def health(self, request: web.Request) -> web.Response:
        """200 while a request could be served."""
        cluster = self._core.scheduler.cluster
        missing = [role for role, engines in (("prefill", cluster.prefill), ("decode", cluster.decode)) if not engines]
        if missing:
            return refuse(503, f"no healthy {' and no healthy '.join(missing)} engine; see /workers", "unhealthy")
        return web.Response(text="OK")

    async def liveness(self, request: web.Request) -> web.Response:
        """200 while the router runs."""
        return web.Response(text="OK")

    async def ask_one(self, request: web.Request) -> web.Response:
        """What any engine would answer."""
        for server in (*self._core.servers.all("decode"), *self._core.servers.all("prefill")):
            if server.healthy:
                return respond(await self._fetch("GET", server.url + request.path))
        return refuse(503, "no healthy engine; see /workers", "service_unavailable")

    async def server_info(self, request: web.Request) -> web.Response:
        """What every engine says of itself."""
        servers = self._core.servers.all()
        answers = await asyncio.gather(*(self._fetch("GET", server.url + "/server_info") for server in servers))
        infos: dict[str, list[Any]] = {"prefill": [], "decode": []}
        for server, answer in zip(servers, answers, strict=True):
            infos[server.role].append(json.loads(answer.body) if answer.status == 200 else {"error": answer.status})
        states = [state for info in infos["decode"] for state in info.get("internal_states", [])]
        return web.json_response({"internal_states": states, **infos})

    async def loads(self, request: web.Request) -> web.Response:
        """Each engine's load as the scheduler sees it."""
        engines = self._core.scheduler.cluster.engines.values()
        return web.json_response(
            {
                "waiting": self._core.scheduler.n_waiting,
                "workers": [
                    {
                        "worker": engine.engine_id,
                        "role": engine.role,
                        "node": engine.node.node_id,
                        "load": engine.seq,
                        "tokens": engine.tok,
                        "pending_new_tokens": engine.pending_new_tokens,
                        "read_q_tokens": engine.node.read_q_tokens,
                        "free_kv_tokens": engine.free_kv_tokens,
                        "free_buffer_tokens": engine.free_buffer_tokens,
                    }
                    for engine in engines
                ],
            }
        )

    async def workers(self, request: web.Request) -> web.Response:
        """All servers."""
        now_s = time.monotonic()
        servers = self._core.servers.all()
        workers = [server.describe(now_s) for server in servers]
        counts = {role: len(self._core.servers.all(role)) for role in _ROLES}
        return web.json_response({"workers": workers, "total": len(workers), **counts})

    async def worker(self, request: web.Request) -> web.Response:
        """One server."""
        server = self._core.servers.by_id(request.match_info["id"])
        if server is None:
            return _unknown(request)
        return web.json_response(server.describe(time.monotonic()))

    # ---- orders

    async def flush(self, request: web.Request) -> web.Response:
        """Empty the device caches of all engines."""
        servers = self._core.servers.all()
        answers = await asyncio.gather(*(self._fetch("POST", f"{s.url}/flush_cache?timeout=10") for s in servers))
        results = {server.url: answer.status for server, answer in zip(servers, answers, strict=True)}
        return web.json_response(results, status=200 if all(s == 200 for s in results.values()) else 502)

    async def add_worker(self, request: web.Request) -> web.Response:
        """A server joins; requests reach it once it has answered its health check."""
        try:
            asked: WorkerRequest = msgspec.json.decode(await request.read(), type=WorkerRequest)
            check_engine_url(asked.url)
            role = asked.role or asked.worker_type
            if role is None:
                raise ValueError("role must be prefill or decode")
            if asked.bootstrap_port is not None and not 0 < asked.bootstrap_port < 65536:
                raise ValueError(f"bootstrap_port {asked.bootstrap_port} is no port")
            server = self._core.servers.add(asked.url, role, "admin", asked.bootstrap_port)
        except RoleMismatch as error:
            return refuse(409, str(error), "conflict")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return refuse(400, f"POST /workers: {error}", "invalid_request_error")
        self._core.run()
        return web.json_response(server.describe(time.monotonic()), status=202)

    async def remove_worker(self, request: web.Request) -> web.Response:
        """A server gets nothing new, and is forgotten once what it runs has ended, or `--drain-timeout-secs` have gone by."""
        server = self._core.servers.by_id(request.match_info["id"])
        if server is None:
            return _unknown(request)
        self._core.servers.drain(server)
        self._core.run()
        task = asyncio.create_task(self._remove_when_idle(server))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)
        return web.json_response(server.describe(time.monotonic()), status=202)

    async def _remove_when_idle(self, server: Server) -> None:
        deadline_s = time.monotonic() + self._drain_timeout_s
        while server.in_flight and server.draining and time.monotonic() < deadline_s:
            await asyncio.sleep(DRAIN_POLL_S)
        if server.draining:
            logger.info("%s engine %s removed, %d requests on it", server.role, server.url, server.in_flight)
            self._core.servers.remove(server)
            self._core.run()

    async def _fetch(self, method: str, url: str) -> Answer:
        assert self.session is not None
        try:
            timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
            async with self.session.request(method, url, timeout=timeout) as response:
                content_type = response.headers.get("content-type", "application/json")
                return Answer(response.status, await response.read(), content_type)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return error_answer(502, f"{url} does not answer: {type(error).__name__}", "engine_failed")


_ROLES: tuple[Role, ...] = ("prefill", "decode")


def _unknown(request: web.Request) -> web.Response:
    return refuse(404, f"no worker {request.match_info['id']!r}; see /workers", "not_found")

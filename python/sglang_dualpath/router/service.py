"""The HTTP front."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

from sglang_dualpath.router import health
from sglang_dualpath.router.arguments import RouterConfig
from sglang_dualpath.router.body import BodyError, facts_of, prepare
from sglang_dualpath.router.control import ControlSocket
from sglang_dualpath.router.dispatch import Dispatcher, NoEngines, QueueFull
from sglang_dualpath.router.exchange import Answer, EngineFailed, PairExchange, Unreachable, error_answer
from sglang_dualpath.router.fleet import Fleet, Role
from sglang_dualpath.router.metrics import RouterMetrics
from sglang_dualpath.router.scheduling.engine import Assignment, RequestFacts
from sglang_dualpath.router.scheduling.policies import POLICIES

logger = logging.getLogger(__name__)

GENERATING_PATHS = ("/generate", "/v1/chat/completions", "/v1/completions")
PASSED_HEADERS = ("authorization", "x-request-id", "x-correlation-id", "traceparent", "tracestate")
ATTEMPTS = 2
RETRY_AFTER_S = 1

IDLE_CONNECTION_S = 3.0
"""Less than the 5 s after which engines close an idle connection: a request sent into that moment would fail."""


@dataclass(slots=True)
class _Ongoing:
    """A client's request under way; `stream` is its streamed response once the status line is out."""

    request: web.Request
    body: dict[str, Any]
    facts: RequestFacts
    request_id: str
    stream: web.StreamResponse | None = None


class RouterService:
    """One router: its fleet, queue, control socket and HTTP application."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.metrics = RouterMetrics()
        self.fleet = Fleet(on_change=self._on_change)
        self.dispatcher = Dispatcher(self.fleet, POLICIES[config.policy](), config.queue_size)
        for url, port in config.prefill:
            self.fleet.add(url, "prefill", port)
        for url in config.decode:
            self.fleet.add(url, "decode")
        self._session: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """The aiohttp application; starts and stops the router's background work with it."""
        app = web.Application(client_max_size=self.config.max_payload_bytes, middlewares=[self._check_key])
        for path in GENERATING_PATHS:
            app.router.add_post(path, self._generate)
        for path in ("/health", "/health_generate", "/readiness"):
            app.router.add_get(path, self._health)
        app.router.add_get("/liveness", self._liveness)
        for path in ("/v1/models", "/get_model_info", "/model_info"):
            app.router.add_get(path, self._ask_one)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._server_info)
        app.router.add_route("*", "/flush_cache", self._flush)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/metrics", self._metrics)
        app.cleanup_ctx.append(self._background)
        return app

    def _on_change(self) -> None:
        if hasattr(self, "dispatcher"):
            self.dispatcher.run()

    async def _background(self, app: web.Application) -> AsyncIterator[None]:
        control = ControlSocket(
            f"tcp://{self.config.control_host}:{self.config.control_port}",
            self.fleet.take_report,
            self.metrics.malformed_reports.inc,
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
        headers = {"authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers, read_bufsize=2**20)
        tasks = [
            asyncio.create_task(control.run()),
            asyncio.create_task(health.watch(self.fleet, self._session, self.config.health_check_interval_s)),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        control.close()
        await self._session.close()

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        key = self.config.api_key
        public = ("/health", "/liveness", "/readiness", "/metrics")
        if key is not None and request.path not in public:
            given = request.headers.get("authorization", "")
            if not secrets.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {key}".encode()):
                return _respond(error_answer(401, "missing or wrong API key", "authentication_error"))
        return await handler(request)

    # ---- generation

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            if not isinstance(body, dict):
                raise ValueError("the body is not a JSON object")
            facts = facts_of(body)
        except (ValueError, RecursionError) as error:
            self.metrics.requests.labels("bad_request").inc()
            return _respond(error_answer(400, f"malformed request: {error}", "invalid_request_error"))
        request_id = next((request.headers[n] for n in self.config.request_id_headers if n in request.headers), None)
        ongoing = _Ongoing(request, body, facts, request_id or secrets.token_hex(16))
        self.metrics.in_flight.inc()
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                return await self._serve(ongoing)
        except TimeoutError:
            self.metrics.requests.labels("timeout").inc()
            answer = error_answer(504, f"no answer within {self.config.request_timeout_s} s", "timeout")
            return _respond(answer) if ongoing.stream is None else await _end_with_error(ongoing.stream, answer)
        except (asyncio.CancelledError, ConnectionResetError):
            self.metrics.requests.labels("client_gone").inc()
            raise
        finally:
            self.metrics.in_flight.dec()
            self.metrics.waiting.set(self.dispatcher.n_waiting)

    async def _serve(self, ongoing: _Ongoing) -> web.StreamResponse:
        passed_over: frozenset[str] = frozenset()
        for attempt in range(ATTEMPTS):
            try:
                assignment, ticket = await self.dispatcher.assign(ongoing.facts, passed_over)
            except NoEngines as error:
                return self._refuse("no_engine", f"{error}; see /workers")
            except QueueFull:
                return self._refuse("queue_full", "too many requests are waiting; raise --queue-size or add engines")
            try:
                return await self._serve_on(ongoing, assignment, ticket)
            except Unreachable as error:
                logger.warning("request %s: %s", ongoing.request_id, error)
                self.fleet.set_health(error.url, False)
                passed_over |= {error.url}
                if attempt + 1 < ATTEMPTS:
                    self.metrics.retries.inc()
            except EngineFailed as error:
                self.metrics.requests.labels("engine_error").inc()
                return _respond(error.answer)
            except BodyError as error:
                self.metrics.requests.labels("bad_request").inc()
                return _respond(error_answer(400, str(error), "invalid_request_error"))
            finally:
                self.fleet.end(assignment, ticket)
        return self._refuse("unreachable", "no engine could be reached")

    async def _serve_on(self, ongoing: _Ongoing, assignment: Assignment, ticket: int) -> web.StreamResponse:
        assert self._session is not None
        request, body = ongoing.request, ongoing.body
        port = self.fleet.engine(assignment.prefill_url).bootstrap_port
        prepared = prepare(body, assignment, port, ongoing.request_id)
        self.metrics.read_sides.labels(assignment.read_side).inc()
        headers = {name: request.headers[name] for name in PASSED_HEADERS if name in request.headers}
        async with PairExchange(self._session, assignment, request.path, prepared, headers) as exchange:
            watcher = asyncio.create_task(self._free_prefill(exchange, assignment, ticket))
            try:
                if body.get("stream"):
                    return await self._stream(ongoing, exchange)
                answer = await exchange.answer(merge_logprobs=bool(body.get("return_logprob")))
            finally:
                watcher.cancel()
        self.metrics.requests.labels("ok" if answer.status == 200 else "engine_error").inc()
        return _respond(answer)

    async def _free_prefill(self, exchange: PairExchange, assignment: Assignment, ticket: int) -> None:
        await exchange.prefill_done.wait()
        self.fleet.end_prefill(assignment, ticket)

    async def _stream(self, ongoing: _Ongoing, exchange: PairExchange) -> web.StreamResponse:
        try:
            async for chunk in exchange.stream():
                if ongoing.stream is None:
                    ongoing.stream = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
                    await ongoing.stream.prepare(ongoing.request)
                await ongoing.stream.write(chunk)
        except EngineFailed as error:
            if ongoing.stream is None:
                raise
            self.metrics.requests.labels("engine_error").inc()
            return await _end_with_error(ongoing.stream, error.answer)
        if ongoing.stream is None:
            raise EngineFailed(
                error_answer(502, "the decode engine closed the stream without an answer", "engine_failed")
            )
        await ongoing.stream.write_eof()
        self.metrics.requests.labels("ok").inc()
        return ongoing.stream

    def _refuse(self, outcome: str, message: str) -> web.Response:
        self.metrics.requests.labels(outcome).inc()
        response = _respond(error_answer(503, message, "service_unavailable"))
        response.headers["retry-after"] = str(RETRY_AFTER_S)
        return response

    # ---- the rest

    async def _health(self, request: web.Request) -> web.Response:
        roles: tuple[Role, ...] = ("prefill", "decode")
        missing = [role for role in roles if not self.fleet.loads(role)]
        if missing:
            return _respond(error_answer(503, f"no healthy {' and no healthy '.join(missing)} engine", "unhealthy"))
        return web.Response(text="OK")

    async def _liveness(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _ask_one(self, request: web.Request) -> web.Response:
        for engine in (*self.fleet.engines("decode"), *self.fleet.engines("prefill")):
            if engine.healthy:
                return _respond(await self._fetch("GET", engine.url + request.path))
        return self._refuse("no_engine", "no healthy engine")

    async def _server_info(self, request: web.Request) -> web.Response:
        infos: dict[str, list[Any]] = {"prefill": [], "decode": []}
        for engine in self.fleet.engines():
            answer = await self._fetch("GET", engine.url + "/server_info")
            infos[engine.role].append(json.loads(answer.body) if answer.status == 200 else {"error": answer.status})
        states = [state for info in infos["decode"] for state in info.get("internal_states", [])]
        return web.json_response({"internal_states": states, **infos})

    async def _flush(self, request: web.Request) -> web.Response:
        engines = self.fleet.engines()
        answers = await asyncio.gather(*(self._fetch("POST", f"{e.url}/flush_cache?timeout=10") for e in engines))
        results = {engine.url: answer.status for engine, answer in zip(engines, answers, strict=True)}
        return web.json_response(results, status=200 if all(s == 200 for s in results.values()) else 502)

    async def _fetch(self, method: str, url: str) -> Answer:
        assert self._session is not None
        try:
            async with self._session.request(method, url, timeout=aiohttp.ClientTimeout(total=30)) as response:
                content_type = response.headers.get("content-type", "application/json")
                return Answer(response.status, await response.read(), content_type)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return error_answer(502, f"{url} does not answer: {type(error).__name__}", "engine_failed")

    async def _workers(self, request: web.Request) -> web.Response:
        workers = [
            {
                "url": engine.url,
                "role": engine.role,
                "healthy": engine.healthy,
                "bootstrap_port": engine.bootstrap_port,
                "in_flight": len(engine.work),
                "reports": bool(engine.reports),
            }
            for engine in self.fleet.engines()
        ]
        return web.json_response({"workers": workers})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.metrics.registry), content_type="text/plain")


async def _end_with_error(response: web.StreamResponse, answer: Answer) -> web.StreamResponse:
    """The status line of a stream is out already: the error goes as its last event."""
    await response.write(b"data: " + answer.body + b"\n\n")
    await response.write_eof()
    return response


def _respond(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers={"content-type": answer.content_type})

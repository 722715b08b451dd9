"""PD engines without a model, in the test's own event loop: they note what they get, and answer, stall, fail or die as told.

They keep upstream's rules about request ids: a batch's requests are called `RID_0`, `RID_1`, ...; an id in use is refused;
an abort ends the request whose id it names exactly; a request whose client is gone goes on until it is aborted.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

GENERATING_PATHS = ("/generate", "/v1/chat/completions", "/v1/completions")


@dataclass(slots=True)
class Call:
    """One request as an engine got it."""

    request: web.Request
    body: dict[str, Any]
    rids: list[str]
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def path(self) -> str:
        """Where it was sent."""
        return self.request.path

    @property
    def headers(self) -> CIMultiDict[str]:
        """Its headers."""
        return CIMultiDict(self.request.headers)


Behaviour = Callable[[Call], Awaitable[web.StreamResponse]]


class StubEngine:
    """One engine on a free port of the loopback. `behaviour` may be replaced at any time; it holds for later calls."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.calls: list[Call] = []
        self.running: dict[str, Call] = {}
        self.aborts: list[tuple[str, CIMultiDict[str]]] = []
        self.n_disconnects = 0
        self.health_status = 200
        self.n_probes = 0
        self.url = ""
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; on the port of before when it has run already."""
        app = web.Application()
        for path in GENERATING_PATHS:
            app.router.add_post(path, self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/flush_cache", self._ok)
        for path in ("/v1/models", "/get_model_info", "/model_info", "/server_info"):
            app.router.add_get(path, self._about)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Refuse connections from now on, and drop those there are."""
        if self._runner is not None:
            for call in list(self.running.values()):
                die(call)
            await self._runner.cleanup()
            self._runner = None
            self.running.clear()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of all calls so far."""
        return [call.body for call in self.calls]

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError as error:  # as FastAPI does
            return web.json_response({"error": {"message": str(error)}}, status=400)
        call = Call(request, body, _request_ids(body))
        self.calls.append(call)
        if any(rid in self.running for rid in call.rids):
            return web.json_response({"error": {"message": f"Duplicate request ID detected: {call.rids}"}}, status=400)
        self.running.update(dict.fromkeys(call.rids, call))
        work = asyncio.ensure_future(self.behaviour(call))
        abort = asyncio.ensure_future(call.aborted.wait())
        try:
            await asyncio.wait({work, abort}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.n_disconnects += 1
            raise
        else:
            for rid in call.rids:
                self.running.pop(rid, None)
            if work.done():
                return work.result()
            return web.json_response({"error": {"message": "aborted"}}, status=400)
        finally:
            work.cancel()
            abort.cancel()

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborts.append((rid, CIMultiDict(request.headers)))
        call = self.running.pop(rid, None)
        if call is not None:
            call.aborted.set()
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        self.n_probes += 1
        return web.Response(status=self.health_status)

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response(text="done")

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response({"path": request.path, "from": self.url, "internal_states": [{"url": self.url}]})


def answers(body: Any, status: int = 200) -> Behaviour:
    """Answer at once with this JSON."""

    async def behave(call: Call) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return behave


def streams(chunks: Sequence[bytes], go_on: asyncio.Event | None = None, then_die: bool = False) -> Behaviour:
    """Stream these bytes as they are; with `go_on`, stop after the first chunk until it is set."""

    async def behave(call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(call.request)
        for i, chunk in enumerate(chunks):
            if i == 1 and go_on is not None:
                await go_on.wait()
            await response.write(chunk)
        if then_die:
            die(call)
        else:
            await response.write_eof()
        return response

    return behave


async def hangs(call: Call) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def dies_at_once(call: Call) -> web.StreamResponse:
    """Drop the connection without a word."""
    die(call)
    return web.Response()


def after(event: asyncio.Event, behaviour: Behaviour) -> Behaviour:
    """Behave so once the event is set."""

    async def behave(call: Call) -> web.StreamResponse:
        await event.wait()
        return await behaviour(call)

    return behave


def die(call: Call) -> None:
    """Cut the connection of a call, as a killed process does."""
    if call.request.transport is not None:
        call.request.transport.abort()


def generated(text: str) -> dict[str, Any]:
    """An answer in the shape of `/generate`."""
    return {"text": text, "meta_info": {"finish_reason": {"type": "length"}}}


def events(*contents: Any) -> list[bytes]:
    """Server-sent events with these contents, and the end mark."""
    return [b"data: " + json.dumps(content).encode() + b"\n\n" for content in contents] + [b"data: [DONE]\n\n"]


async def default_behaviour(call: Call) -> web.StreamResponse:
    """A short answer, streamed when that is asked for."""
    if call.body.get("stream"):
        return await streams(events(generated("a"), generated("b")))(call)
    return await answers(generated("ab"))(call)


@contextlib.asynccontextmanager
async def stub_engines(n: int) -> AsyncIterator[list[StubEngine]]:
    """`n` engines that answer at once, gone at the end."""
    engines = [StubEngine(default_behaviour) for _ in range(n)]
    try:
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        for engine in engines:
            await engine.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come about. Raises TimeoutError where it never does."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def _request_ids(body: dict[str, Any]) -> list[str]:
    rid, room = body["rid"], body["bootstrap_room"]
    if isinstance(rid, list):
        return rid
    return [f"{rid}_{i}" for i in range(len(room))] if isinstance(room, list) else [rid]

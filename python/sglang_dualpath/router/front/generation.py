"""`/generate` and the OpenAI endpoints: one request from its arrival to its last byte."""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from sglang_dualpath.router import logs
from sglang_dualpath.router.exchange import (
    EngineFailed,
    EngineLost,
    EnginePair,
    PairExchange,
    Unreachable,
    error_answer,
)
from sglang_dualpath.router.front.errors import STATUS_OF, end_with_error, message_of, refuse, respond
from sglang_dualpath.router.front.placement import Core, Ended, Finished, NotPlaced, Outcome, Placement
from sglang_dualpath.router.front.tracing import TRACE_HEADERS, headers_for_engines, request_span, stage_span
from sglang_dualpath.router.prompt.body import Body, BodyError, read
from sglang_dualpath.router.prompt.prepared import Rendezvous, prepare
from sglang_dualpath.router.scheduling.request import Request
from sglang_dualpath.telemetry.plan import plan_of_share

logger = logging.getLogger(__name__)

PASSED_HEADERS = ("authorization", "x-request-id", "x-correlation-id", *TRACE_HEADERS)
ATTEMPTS = 2


@dataclass(slots=True)
class Ongoing:
    """A client's request under way."""

    request: web.Request
    body: Body
    facts: Request
    arrived_s: float
    stream: web.StreamResponse | None = None
    """Its streamed response once the status line is out."""
    first_byte_s: float | None = None
    passed_over: set[str] = field(default_factory=set)
    outcome: Outcome = "client_gone"
    retries: int = 0


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What the front needs of the router's flags."""

    request_timeout_s: float
    request_id_headers: tuple[str, ...]
    retries: bool


class Generation:
    """Handles generating requests on behalf of one front process."""

    def __init__(self, core: Core, settings: GenerationSettings) -> None:
        self._core = core
        self._settings = settings
        self._exchanges: defaultdict[str, set[PairExchange]] = defaultdict(set)
        self.session: aiohttp.ClientSession | None = None
        core.on_lost(self._on_lost)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The aiohttp handler."""
        given = request.headers
        request_id = next((given[name] for name in self._settings.request_id_headers if name in given), None)
        request_id = request_id or secrets.token_hex(16)
        logs.request_id.set(request_id)
        with request_span(given, request_id, request.path):
            return await self._handle(request, request_id)

    async def _handle(self, request: web.Request, request_id: str) -> web.StreamResponse:
        arrived_s = time.monotonic()
        try:
            body = read(await request.read())
            facts = body.request(request_id, arrived_s)
        except BodyError as error:
            self._core.note(Finished(outcome="bad_request"))
            return refuse(400, str(error), "invalid_request_error")
        ongoing = Ongoing(request, body, facts, arrived_s)
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await self._serve(ongoing)
        except TimeoutError:
            ongoing.outcome = "timeout"
            answer = error_answer(504, f"no answer within {self._settings.request_timeout_s} s", "timeout")
            return respond(answer) if ongoing.stream is None else await end_with_error(ongoing.stream, answer)
        finally:
            self._core.note(Finished(outcome=ongoing.outcome, retries=ongoing.retries))
            self._log(ongoing)

    def _log(self, ongoing: Ongoing) -> None:
        elapsed_s = time.monotonic() - ongoing.arrived_s
        level = logging.DEBUG if ongoing.outcome == "ok" else logging.INFO
        logger.log(level, "request %s: %s after %.3f s", ongoing.facts.request_id, ongoing.outcome, elapsed_s)

    async def _serve(self, ongoing: Ongoing) -> web.StreamResponse:
        attempts = ATTEMPTS if self._settings.retries else 1
        lost: EngineLost | None = None
        for attempt in range(1, attempts + 1):
            # A ticket of its own for each attempt: the core may still be ending the one before.
            facts = ongoing.facts
            facts.passed_over = frozenset(ongoing.passed_over)
            try:
                with stage_span("queue"):
                    placement = await self._core.place(facts)
            except NotPlaced as error:
                if lost is not None:
                    return await self._give_up(ongoing, lost)
                ongoing.outcome = error.outcome
                kind = "rate_limit_exceeded" if error.outcome == "queue_full" else "service_unavailable"
                return refuse(STATUS_OF[error.outcome], str(error), kind)
            try:
                with stage_span("serve", prefill=placement.prefill_url, decode=placement.decode_url):
                    return await self._serve_on(ongoing, placement)
            except (Unreachable, EngineLost) as error:
                logger.warning("request %s: %s", facts.request_id, error)
                ongoing.passed_over.add(error.url)
                if attempt == attempts or ongoing.stream is not None:
                    return await self._give_up(ongoing, error)
                lost = error if isinstance(error, EngineLost) else None
                ongoing.retries += 1
        raise AssertionError("the last attempt returns")

    async def _give_up(self, ongoing: Ongoing, error: Unreachable | EngineLost) -> web.StreamResponse:
        if isinstance(error, Unreachable):
            return refuse(503, f"{error}; see /workers", "service_unavailable")
        if ongoing.stream is not None:
            return await end_with_error(ongoing.stream, error.answer)
        return respond(error.answer)

    async def _serve_on(self, ongoing: Ongoing, placement: Placement) -> web.StreamResponse:
        failed_url: str | None = None
        ongoing.outcome = "client_gone"
        try:
            response = await self._exchange(ongoing, placement)
            ongoing.outcome = "ok"
            return response
        except Unreachable as error:
            ongoing.outcome, failed_url = "unreachable", error.url
            raise
        except EngineLost as error:
            ongoing.outcome, failed_url = "engine_lost", error.url
            raise
        except EngineFailed as error:
            ongoing.outcome = "engine_error"
            failed_url = error.url if error.answer.status >= 500 else None
            logger.info("request %s: %s: %s", ongoing.facts.request_id, error, message_of(error.answer))
            if ongoing.stream is not None:
                return await end_with_error(ongoing.stream, error.answer)
            return respond(error.answer)
        except BodyError as error:
            ongoing.outcome = "bad_request"
            return refuse(400, str(error), "invalid_request_error")
        finally:
            ttft_s = None if ongoing.first_byte_s is None else ongoing.first_byte_s - ongoing.arrived_s
            self._core.end(
                Ended(ticket=placement.ticket, outcome=ongoing.outcome, failed_url=failed_url, ttft_s=ttft_s)
            )

    async def _exchange(self, ongoing: Ongoing, placement: Placement) -> web.StreamResponse:
        assert self.session is not None
        place = Rendezvous(
            placement.prefill_url, placement.bootstrap_port, placement.prefill_rank, placement.decode_rank
        )
        plan = plan_of_share(placement.decode_read_share, ongoing.facts.request_id)
        prepared = prepare(ongoing.body, place, plan)
        pair = EnginePair(placement.prefill_url, placement.decode_url)
        given = ongoing.request.headers
        headers = {name: given[name] for name in PASSED_HEADERS if name in given} | headers_for_engines()
        async with PairExchange(self.session, pair, ongoing.request.path, prepared, headers) as exchange:
            exchange.prefill_done = lambda: self._core.prefill_done(placement.ticket)
            urls = (pair.prefill_url, pair.decode_url)
            for url in urls:
                self._exchanges[url].add(exchange)
            try:
                if await exchange.streams():
                    return await self._stream(ongoing, exchange, pair)
                answer = await exchange.answer(merge_logprobs=ongoing.body.return_logprob)
                ongoing.first_byte_s = time.monotonic()
                if answer.status != 200:
                    raise EngineFailed(pair.decode_url, answer)
                return respond(answer)
            finally:
                for url in urls:
                    self._exchanges[url].discard(exchange)

    async def _stream(self, ongoing: Ongoing, exchange: PairExchange, pair: EnginePair) -> web.StreamResponse:
        async for chunk in exchange.stream():
            if ongoing.stream is None:
                ongoing.first_byte_s = time.monotonic()
                ongoing.stream = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
                await ongoing.stream.prepare(ongoing.request)
            await ongoing.stream.write(chunk)
        if ongoing.stream is None:
            raise EngineLost("decode", pair.decode_url, "it closed the stream without an answer")
        await ongoing.stream.write_eof()
        return ongoing.stream

    def _on_lost(self, url: str) -> None:
        for exchange in list(self._exchanges[url]):
            exchange.lose(url)

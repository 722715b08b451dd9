"""One request on its pair of engines: both get it at once, the decode engine's answer is the client's."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import aiohttp

from sglang_dualpath.router.prompt.prepared import PreparedBody
from sglang_dualpath.telemetry.plan import PLAN_HEADER

logger = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 2.0

_ERROR_EVENT = b'data: {"error"'


class Unreachable(Exception):
    """An engine could not be connected to; nothing was sent."""

    def __init__(self, url: str) -> None:
        super().__init__(f"engine {url} cannot be reached")
        self.url = url


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, of either engine."""

    status: int
    body: bytes
    content_type: str


class EngineFailed(Exception):
    """An engine answered with an error. `answer` is what the client should get, `url` whose it is."""

    def __init__(self, url: str, answer: Answer) -> None:
        super().__init__(f"status {answer.status} of {url}")
        self.url = url
        self.answer = answer


class EngineLost(EngineFailed):
    """An engine went away in the midst of a request."""

    def __init__(self, role: str, url: str, how: str) -> None:
        super().__init__(url, error_answer(502, f"the {role} engine {url} went away: {how}", "engine_failed"))


@dataclass(frozen=True, slots=True)
class EnginePair:
    """The two servers of one request."""

    prefill_url: str
    decode_url: str


class PairExchange:
    """Sends one prepared body to both engines. Use as an async context: leaving it ends both, and aborts what still runs."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        pair: EnginePair,
        path: str,
        prepared: PreparedBody,
        headers: Mapping[str, str],
    ) -> None:
        self._session = session
        self._pair = pair
        self._path = path
        self._rids = prepared.rids
        self._prepared = prepared
        self._headers = {
            **headers,
            "content-type": "application/json",
            PLAN_HEADER: json.dumps(prepared.kv_hints),
        }
        self._finished = False
        self._failure: Exception | None = None
        self.prefill_done: Callable[[], None] = lambda: None
        """Called once the prefill engine has done its part."""

    async def __aenter__(self) -> "PairExchange":
        self._prefill = asyncio.create_task(self._run_prefill())
        self._decode = asyncio.create_task(self._post(self._pair.decode_url, self._prepared.decode_data))
        self._prefill.add_done_callback(self._on_prefill)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in (self._prefill, self._decode):
            task.cancel()
        results = await asyncio.gather(self._prefill, self._decode, return_exceptions=True)
        if isinstance(results[1], aiohttp.ClientResponse):
            results[1].close()
        if not self._finished:
            await asyncio.shield(self._abort_both())

    def lose(self, url: str) -> None:
        """One of the two engines has been found dead by other means: end the exchange with EngineLost."""
        role = "prefill" if url == self._pair.prefill_url else "decode"
        self._fail(EngineLost(role, url, "it does not answer its health check"))

    async def streams(self) -> bool:
        """Whether the decode engine answers with a stream; engines take more than `true` for a yes. Raises EngineFailed or
        Unreachable."""
        response = await self._decode_response()
        return response.status == 200 and response.content_type == "text/event-stream"

    async def answer(self, merge_logprobs: bool) -> Answer:
        """The whole answer of the decode engine. Raises EngineFailed or Unreachable."""
        response = await self._decode_response()
        answer = await self._whole(response)
        if answer.status == 200:
            prefill = await self._prefill
            if merge_logprobs:
                answer = self._with_input_logprobs(answer, prefill)
            self._finished = True
        return answer

    def _with_input_logprobs(self, answer: Answer, prefill: Answer) -> Answer:
        try:
            return _with_input_logprobs(answer, prefill)
        except (ValueError, KeyError, TypeError, AttributeError):
            said = error_answer(502, "the two engines' answers do not fit together", "engine_failed")
            raise EngineFailed(self._pair.prefill_url, said) from None

    async def stream(self) -> AsyncIterator[bytes]:
        """The decode engine's chunks as they come. Raises EngineFailed or Unreachable, also in mid-stream."""
        response = await self._decode_response()
        if response.status != 200:
            raise EngineFailed(self._pair.decode_url, await self._whole(response))
        try:
            while chunk := await response.content.readany():
                yield chunk
        except aiohttp.ClientError as error:
            raise EngineLost("decode", self._pair.decode_url, type(error).__name__) from error
        self._finished = True

    async def _decode_response(self) -> aiohttp.ClientResponse:
        try:
            return await self._decode
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise

    async def _whole(self, response: aiohttp.ClientResponse) -> Answer:
        try:
            body = await response.read()
        except aiohttp.ClientError as error:
            raise EngineLost("decode", self._pair.decode_url, type(error).__name__) from error
        return Answer(response.status, body, response.headers.get("content-type", "application/json"))

    def _on_prefill(self, task: "asyncio.Task[Answer]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End what waits for the decode engine with `error`; the first one stands."""
        if self._failure is not None:
            return
        self._failure = error
        if not self._decode.done():
            self._decode.cancel()
        elif not self._decode.cancelled() and self._decode.exception() is None:
            self._decode.result().content.set_exception(error)

    async def _run_prefill(self) -> Answer:
        """The prefill engine's whole answer. Raises EngineFailed when it is an error."""
        url = self._pair.prefill_url
        response = await self._post(url, self._prepared.prefill_data)
        try:
            body = await response.read()
        except aiohttp.ClientError as error:
            raise EngineLost("prefill", url, type(error).__name__) from error
        answer = Answer(response.status, body, response.headers.get("content-type", "application/json"))
        if answer.status != 200:
            raise EngineFailed(url, answer)
        if _ERROR_EVENT in body:
            raise EngineFailed(url, _error_in_stream(body))
        self.prefill_done()
        return answer

    async def _post(self, url: str, data: bytes) -> aiohttp.ClientResponse:
        try:
            return await self._session.post(url + self._path, data=data, headers=self._headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(url) from error
        except aiohttp.ClientError as error:
            role = "prefill" if url == self._pair.prefill_url else "decode"
            raise EngineLost(role, url, type(error).__name__) from error

    async def _abort_both(self) -> None:
        """Tell both engines to stop; closing the connections alone leaves a streamless request running for a while."""
        urls = (self._pair.prefill_url, self._pair.decode_url)
        await asyncio.gather(*(self._abort(url, rid) for url in urls for rid in self._rids))

    async def _abort(self, url: str, rid: str) -> None:
        headers = {name: value for name, value in self._headers.items() if name == "authorization"}
        timeout = aiohttp.ClientTimeout(total=ABORT_TIMEOUT_S)
        try:
            async with self._session.post(
                f"{url}/abort_request", json={"rid": rid}, headers=headers, timeout=timeout
            ) as response:
                if response.status != 200:
                    logger.warning("abort on %s of %s: status %d", url, rid, response.status)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            logger.warning("abort on %s of %s: %s", url, rid, type(error).__name__)


def error_answer(status: int, message: str, kind: str) -> Answer:
    """An error in the shape that OpenAI clients and upstream's own share."""
    body = {"error": {"message": message, "type": kind, "code": status}}
    return Answer(status, json.dumps(body).encode(), "application/json")


def _error_in_stream(body: bytes) -> Answer:
    """The error event of a streamed answer, as an answer of its own."""
    line = next(line for line in body.split(b"\n") if line.startswith(_ERROR_EVENT))
    content = line.removeprefix(b"data: ")
    try:
        code = json.loads(content)["error"].get("code")
    except (ValueError, KeyError, AttributeError):
        code = None
    return Answer(code if isinstance(code, int) and 400 <= code < 600 else 500, content, "application/json")


def _with_input_logprobs(answer: Answer, prefill: Answer) -> Answer:
    """The decode engine's answer with the prompt's logprobs, which only the prefill engine has."""
    ours, theirs = json.loads(answer.body), json.loads(prefill.body)
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
    for mine, other in pairs:
        info = mine.get("meta_info", {})
        if "input_token_logprobs" in info:
            info["input_token_logprobs"] = (
                other["meta_info"].get("input_token_logprobs", []) + info["input_token_logprobs"]
            )
    return Answer(answer.status, json.dumps(ours).encode(), answer.content_type)

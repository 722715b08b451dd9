"""Replaying agents against an SGLang endpoint: each waits for its answer, lets its tool run, and asks again."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from sglang_dualpath.bench.trace import Session, Trace

OnTurn = Callable[["TurnResult"], None]


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """One answered turn. Times in seconds since the replay began."""

    session_id: str
    turn: int
    began_s: float
    ttft_s: float
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None for answers of one token."""
        if self.output_tokens < 2 or self.error is not None:
            return None
        return (self.ended_s - self.began_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How agents behave. `tool_time_scale` 0: tools take no time."""

    tool_time_scale: float = 0.0
    timeout_s: float = 600.0


async def replay(url: str, trace: Trace, options: ReplayOptions, on_turn: OnTurn) -> list[TurnResult]:
    """Run all agents at once to their end (the paper's offline setting); results in order of completion."""
    results: list[TurnResult] = []
    began_s = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:

        async def run(session: Session) -> None:
            text = session.context_text
            for index, turn in enumerate(session.turns):
                await asyncio.sleep(turn.tool_time_s * options.tool_time_scale)
                text += turn.appended_text
                result = await _ask(client, url, text, turn.output_tokens, session.session_id, index, began_s)
                results.append(result)
                on_turn(result)
                if result.error is not None:
                    return
                text += result.text

        await asyncio.gather(*(run(session) for session in trace.sessions))
    return results


async def warm_up(url: str, trace: Trace, options: ReplayOptions, on_turn: OnTurn) -> None:
    """Have every agent's opening context computed and persisted once, one after another; not measured."""
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        for session in trace.sessions:
            result = await _ask(client, url, session.context_text, 1, session.session_id, -1, time.monotonic())
            if result.error is not None:
                raise RuntimeError(f"warm-up of {session.session_id} failed: {result.error}")
            on_turn(result)


async def _ask(
    client: aiohttp.ClientSession, url: str, text: str, output_tokens: int, session_id: str, turn: int, zero_s: float
) -> TurnResult:
    body = {
        "text": text,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
    }
    began = time.monotonic()
    first: float | None = None
    last: dict = {}
    error: str | None = None
    try:
        async with client.post(url + "/generate", json=body) as response:
            if response.status != 200:
                error = (await response.text())[:500]
            else:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    last = json.loads(line[6:])
                    if "error" in last:
                        error = str(last["error"])[:500]
                        break
                    if first is None:
                        first = time.monotonic()
    except (aiohttp.ClientError, asyncio.TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    ended = time.monotonic()
    facts = last.get("meta_info", {})
    if error is None and first is None:
        error = "the stream ended without a token"
    return TurnResult(
        session_id=session_id,
        turn=turn,
        began_s=began - zero_s,
        ttft_s=(first or ended) - began,
        ended_s=ended - zero_s,
        prompt_tokens=facts.get("prompt_tokens", 0),
        cached_tokens=facts.get("cached_tokens", 0),
        output_tokens=facts.get("completion_tokens", 0),
        text=last.get("text", "") if error is None else "",
        error=error,
    )

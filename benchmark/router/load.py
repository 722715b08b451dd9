"""The load generator: streamed requests at a Poisson rate (open loop), or from a fixed number of clients (closed loop)."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp


@dataclass(slots=True)
class Measured:
    """What one load has given; latencies in seconds, to the first and to the last byte."""

    first_byte_s: list[float] = field(default_factory=list)
    last_byte_s: list[float] = field(default_factory=list)
    failed: int = 0
    elapsed_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Requests finished a second."""
        return len(self.last_byte_s) / self.elapsed_s if self.elapsed_s else 0.0


def bodies(n_tokens: int, n_different: int, seed: int) -> list[bytes]:
    """Request bodies with random token ids."""
    source = random.Random(seed)
    return [
        json.dumps(
            {
                "input_ids": [source.randrange(1000, 150_000) for _ in range(n_tokens)],
                "sampling_params": {"max_new_tokens": 4},
                "stream": True,
            }
        ).encode()
        for _ in range(n_different)
    ]


class Load:
    """One client process's connections to one URL."""

    def __init__(self, url: str, payloads: list[bytes]) -> None:
        self._url = url + "/generate"
        self._payloads = payloads
        self._sent = 0

    async def open_loop(self, rate_per_s: float, duration_s: float, seed: int, warmup_s: float = 1.0) -> Measured:
        """Requests at Poisson arrivals; those of the first `warmup_s` are not counted."""
        source = random.Random(seed)
        measured, discarded = Measured(), Measured()
        tasks: set[asyncio.Task[None]] = set()
        async with self._session() as session:
            began_s = time.perf_counter()
            due_s = began_s
            while (due_s := due_s + source.expovariate(rate_per_s)) < began_s + warmup_s + duration_s:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                into = discarded if due_s < began_s + warmup_s else measured
                task = asyncio.create_task(self._one(session, into, due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if tasks:
                await asyncio.wait(tasks, timeout=30)
        measured.elapsed_s = duration_s
        return measured

    async def closed_loop(self, n_clients: int, duration_s: float) -> Measured:
        """Each client sends its next request when its last one is answered."""
        measured = Measured()
        async with self._session() as session:
            began_s = time.perf_counter()

            async def client() -> None:
                while (now_s := time.perf_counter()) < began_s + duration_s:
                    await self._one(session, measured, now_s)

            await asyncio.gather(*(client() for _ in range(n_clients)))
            measured.elapsed_s = time.perf_counter() - began_s
        return measured

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30), read_bufsize=2**20
        )

    async def _one(self, session: aiohttp.ClientSession, measured: Measured, due_s: float) -> None:
        payload = self._payloads[self._sent % len(self._payloads)]
        self._sent += 1
        try:
            headers = {"content-type": "application/json"}
            async with session.post(self._url, data=payload, headers=headers) as response:
                first = await response.content.readany()
                first_s = time.perf_counter()
                rest = await response.content.read()
                if response.status != 200 or b"[DONE]" not in (first + rest)[-64:]:
                    measured.failed += 1
                    return
        except (aiohttp.ClientError, asyncio.TimeoutError):
            measured.failed += 1
            return
        measured.first_byte_s.append(first_s - due_s)
        measured.last_byte_s.append(time.perf_counter() - due_s)

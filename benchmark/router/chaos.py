"""Streams at once, clients that leave, engines that are killed and come again: every request ends, and the counts add up."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import aiohttp
from rich.console import Console
from sglang_dualpath.demo.process import free_port

from benchmark.router.targets import Engines, router_command, running

N_ENGINES = 3
KILLS = 6
BETWEEN_KILLS_S = 1.5
ENDS_WITHIN_S = 60.0


class StubServer:
    """One stub engine in a process of its own, that can be killed and started again on its port."""

    def __init__(self, log: Path) -> None:
        self._port = free_port()
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Run."""
        with self._log.open("a") as file:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmark.router.stub", "--ports", str(self._port), "--chunks", "40",
                "--chunk-seconds", "0.05", stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    async def kill(self) -> None:
        """Die without a word."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


class Chaos:
    """One run; its problems are what it returns."""

    def __init__(self, logs: Path, n_streams: int, seed: int, console: Console) -> None:
        self._logs = logs
        self._n_streams = n_streams
        self._random = random.Random(seed)
        self._console = console
        self._ends: Counter[str] = Counter()

    async def run(self) -> list[str]:
        """All of it."""
        servers = [StubServer(self._logs / f"engine{i}.log") for i in range(2 * N_ENGINES)]
        await asyncio.gather(*(server.start() for server in servers))
        urls = tuple(server.url for server in servers)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = router_command("dualpath", Engines(urls[:N_ENGINES], urls[N_ENGINES:]), port, None)
        command += ["--health-check-interval-secs", "0.5", "--queue-size", str(self._n_streams)]
        command += ["--cb-timeout-duration-secs", "1"]
        try:
            with running(command, url, self._logs / "router.log"):
                return await self._play(url, servers)
        finally:
            await asyncio.gather(*(server.kill() for server in servers))

    async def _play(self, url: str, servers: list[StubServer]) -> list[str]:
        timeout = aiohttp.ClientTimeout(total=ENDS_WITHIN_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            streams = [asyncio.create_task(self._stream(session, url)) for _ in range(self._n_streams)]
            for _ in range(KILLS):
                await asyncio.sleep(BETWEEN_KILLS_S)
                victim = self._random.choice(servers)
                await victim.kill()
                await victim.start()
            done, running_still = await asyncio.wait(streams, timeout=ENDS_WITHIN_S)
            problems = [f"{len(running_still)} streams have not ended"] if running_still else []
            for task in running_still:
                task.cancel()
            for task in done:
                task.result()
            self._console.print(f"{self._n_streams} streams: {dict(self._ends)}")
            return problems + await self._settled(session, url)

    async def _stream(self, session: aiohttp.ClientSession, url: str) -> None:
        body = {"text": "x" * self._random.randint(1, 4000), "stream": True}
        leaves_after_s = self._random.uniform(0.0, 6.0) if self._random.random() < 0.3 else None
        await asyncio.sleep(self._random.uniform(0.0, KILLS * BETWEEN_KILLS_S / 2))
        try:
            async with asyncio.timeout(leaves_after_s), session.post(url + "/generate", json=body) as response:
                data = await response.read()
        except TimeoutError:
            self._ends["left"] += 1
        except aiohttp.ClientError:
            self._ends["connection lost"] += 1
        else:
            complete = response.status == 200 and b"[DONE]" in data[-64:]
            self._ends["answered" if complete else f"error {response.status}"] += 1

    async def _settled(self, session: aiohttp.ClientSession, url: str) -> list[str]:
        """In flight is 0 again, and the router has counted as many ends as there were requests."""
        values: dict[str, float] = {}
        for _ in range(100):
            async with session.get(url + "/metrics") as response:
                lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
            values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
            if values["dualpath_router_in_flight"] == values["dualpath_router_waiting"] == 0:
                break
            await asyncio.sleep(0.1)
        counted = sum(value for name, value in values.items() if name.startswith("dualpath_router_requests_total"))
        self._console.print(
            f"the router counted {counted:.0f} ends, {values['dualpath_router_retries_total']:.0f} retries"
        )
        problems = []
        left = {name: values[f"dualpath_router_{name}"] for name in ("in_flight", "waiting")}
        if any(left.values()):
            problems.append(f"not all has ended: {left}")
        # A client that leaves before its request has been read is never counted.
        if not self._n_streams - self._ends["left"] <= counted <= self._n_streams:
            problems.append(f"{counted:.0f} ends counted of {self._n_streams} requests")
        if self._ends["connection lost"]:
            problems.append(f"{self._ends['connection lost']} clients lost their connection to the router")
        return problems

"""Malformed requests against a running router, and agents that leave while engines die: nothing may break, nothing may leak.

    python -m benchmark.fuzz_router                  # 10,000 malformed requests
    python -m benchmark.fuzz_router --chaos          # 1,000 streams at once, random aborts, engines killed and restarted

Malformed requests are made from the router's own `/openapi.json`: right ones with fields of wrong types, missing, nested, cut and
garbled bytes, wrong methods and paths, odd headers. The engines behind are stubs. Must hold: no answer of 500 or above, the
router answers its health check to the end, nothing in flight afterwards, and its memory does not grow by more than a tenth in the
second half.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.progress import Progress
from sglang_dualpath.demo.process import free_port

from benchmark.router.chaos import Chaos
from benchmark.router.malformed import Malformed
from benchmark.router.targets import router_command, running, stub_engines

AT_ONCE = 16


def main() -> None:
    """The command line."""
    # What it has started is stopped on the way out, also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _parse()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fuzz-router-") as directory:
        if arguments.chaos:
            problems = uvloop.run(Chaos(Path(directory), arguments.streams, arguments.seed, console).run())
        else:
            problems = _malformed(arguments, Path(directory), console)
    for problem in problems:
        console.print(f"[red]{problem}[/red]", highlight=False)
    sys.exit(1 if problems else 0)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--chaos", action="store_true", help="streams, aborts and dying engines instead")
    parser.add_argument("--streams", type=int, default=1000, help="at once, for --chaos (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _malformed(arguments: argparse.Namespace, logs: Path, console: Console) -> list[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        stub_engines(logs / "engines.log", quick_ack=False) as engines,
        running(router_command("dualpath", engines, port, None), url, logs / "router.log") as process,
    ):
        statuses: Counter[int] = Counter()
        half = arguments.requests // 2
        uvloop.run(_send(url, half, arguments.seed, statuses, console))
        before = process.memory_info().rss
        uvloop.run(_send(url, arguments.requests - half, arguments.seed + 1, statuses, console))
        grown = process.memory_info().rss / before - 1
        in_flight = uvloop.run(_in_flight(url))
        console.print(
            f"answers by status: {dict(sorted(statuses.items()))}; memory grew by {grown:.1%} in the second half"
        )
        problems = [f"{count} answers of {status}" for status, count in statuses.items() if status >= 500]
        if grown > 0.1:
            problems.append(f"memory grew by {grown:.1%}")
        if in_flight != 0:
            problems.append(f"{in_flight} requests are in flight still")
        return problems


async def _send(url: str, n_requests: int, seed: int, statuses: "Counter[int]", console: Console) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        async with session.get(url + "/openapi.json") as response:
            source = Malformed(await response.json(), seed)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("malformed requests", total=n_requests)
            left = iter(range(n_requests))

            async def client() -> None:
                for _ in left:
                    statuses[await source.send(session, url)] += 1
                    progress.advance(task)

            await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def _in_flight(url: str) -> int:
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(url + "/metrics") as response:
                lines = (await response.text()).splitlines()
            value = next(float(line.split()[1]) for line in lines if line.startswith("dualpath_router_in_flight "))
            if value == 0:
                break
            await asyncio.sleep(0.1)
    return int(value)


if __name__ == "__main__":
    main()

"""What a router adds: latency over a direct call to a stub engine, requests a second, CPU a request; and its own decisions.

    python -m benchmark.bench_router                              # ours
    python -m benchmark.bench_router --others .venv-routers       # beside sglang_router, its mini-lb, and smg

Stub engines answer at once, so what is measured is the router; all targets stand before the same engines, on the same cores as
the load, round after round in one run, in an order that changes. Latency: streamed requests at a Poisson rate, time to the first
byte; `added` is what a target takes more than the engines alone in the same round. Throughput: a fixed number of clients;
`req/s a core` is requests over the CPU seconds of the router's processes. The median of the rounds, in brackets the lowest and
the highest.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table
from sglang_dualpath.demo.process import free_port

from benchmark.router.decisions import measure_decisions
from benchmark.router.load import Load, Measured, bodies
from benchmark.router.targets import Target, router_command, running, stub_engines

OURS = ("dualpath", "dualpath x2")
THEIRS = ("sglang_router", "mini-lb", "smg")


@dataclass(slots=True)
class Figures:
    """One target's rounds."""

    first_p50_ms: list[float] = field(default_factory=list)
    first_p99_ms: list[float] = field(default_factory=list)
    added_p50_ms: list[float] = field(default_factory=list)
    added_p99_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    per_core_s: list[float] = field(default_factory=list)
    failed: int = 0
    sent: int = 0


def main() -> None:
    """The command line."""
    # What it has started is stopped on the way out, also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _parse()
    console = Console()
    console.print("decisions, measured alone (microseconds, medians):")
    console.print(measure_decisions())
    names = ["engines alone", *OURS, *(THEIRS if arguments.others else ())]
    figures = {name: Figures() for name in names}
    with tempfile.TemporaryDirectory(prefix="bench-router-") as directory:
        _measure(arguments, Path(directory), figures, console)
    console.print(_table(figures, arguments))
    if arguments.output is not None:
        result = {name: {slot: getattr(one, slot) for slot in one.__slots__} for name, one in figures.items()}
        arguments.output.write_text(json.dumps({"arguments": _plain(arguments), "targets": result}, indent=1))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second for latency (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=32_768, help="of each prompt, for latency (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement (default %(default)s)")
    parser.add_argument("--clients", type=int, default=64, help="at once, for throughput (default %(default)s)")
    parser.add_argument("--short-tokens", type=int, default=1024, help="of each prompt, for throughput")
    parser.add_argument("--others", type=Path, help="virtual environment with sglang-router and smg")
    parser.add_argument(
        "--quick-ack", action="store_true", help="stub engines acknowledge at once (see router/stub.py)"
    )
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace, logs: Path, figures: dict[str, Figures], console: Console) -> None:
    long = bodies(arguments.tokens, 8, seed=1)
    short = bodies(arguments.short_tokens, 64, seed=2)
    names = list(figures)
    with stub_engines(logs / "engines.log", arguments.quick_ack) as engines:
        for turn in range(arguments.rounds):
            # The engines alone come first in each round, the others in turn.
            order = [names[0], *names[1 + turn % (len(names) - 1) :], *names[1 : 1 + turn % (len(names) - 1)]]
            alone: Measured | None = None
            for name in order:
                console.print(f"round {turn + 1} of {arguments.rounds}: {name}", highlight=False)
                with contextlib.ExitStack() as stack:
                    target = Target(name, engines.decode[0], None)
                    if name != names[0]:
                        port = free_port()
                        command = router_command(name, engines, port, arguments.others)
                        url = f"http://127.0.0.1:{port}"
                        process = stack.enter_context(running(command, url, logs / f"{name}.log"))
                        target = Target(name, url, process)
                    latency = uvloop.run(Load(target.url, long).open_loop(arguments.rate, arguments.seconds, seed=turn))
                    alone = alone or latency
                    _note_latency(figures[name], latency, alone)
                    _note_throughput(figures[name], target, short, arguments)


def _note_latency(figures: Figures, latency: Measured, alone: Measured) -> None:
    figures.failed += latency.failed
    figures.sent += latency.failed + len(latency.first_byte_s)
    for share, seen, added in (
        (0.5, figures.first_p50_ms, figures.added_p50_ms),
        (0.99, figures.first_p99_ms, figures.added_p99_ms),
    ):
        value = _quantile(latency.first_byte_s, share) * 1000
        seen.append(value)
        added.append(value - _quantile(alone.first_byte_s, share) * 1000)


def _note_throughput(figures: Figures, target: Target, short: list[bytes], arguments: argparse.Namespace) -> None:
    before_s = target.cpu_s()
    measured = uvloop.run(Load(target.url, short).closed_loop(arguments.clients, arguments.seconds))
    used_s = target.cpu_s() - before_s
    figures.failed += measured.failed
    figures.sent += measured.failed + len(measured.last_byte_s)
    figures.per_s.append(measured.per_s)
    if used_s > 0:
        figures.per_core_s.append(len(measured.last_byte_s) / used_s)


def _table(figures: dict[str, Figures], arguments: argparse.Namespace) -> Table:
    table = Table(
        title=f"{arguments.rate:.0f} requests/s of {arguments.tokens:,} tokens, streamed; then {arguments.clients} clients "
        f"with {arguments.short_tokens:,} tokens; {arguments.rounds} rounds"
    )
    columns: dict[str, Callable[[Figures], str]] = {
        "p50 ms": lambda one: _spread(one.first_p50_ms, 2),
        "p99 ms": lambda one: _spread(one.first_p99_ms, 1),
        "added p50": lambda one: _spread(one.added_p50_ms, 2),
        "added p99": lambda one: _spread(one.added_p99_ms, 1),
        "req/s": lambda one: _spread(one.per_s, 0),
        "req/s a core": lambda one: _spread(one.per_core_s, 0),
        "failed": lambda one: f"{one.failed} of {one.sent}",
    }
    table.add_column("target")
    for title in columns:
        table.add_column(title, justify="right")
    for name, one in figures.items():
        table.add_row(name, *(show(one) for show in columns.values()))
    return table


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _plain(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    main()

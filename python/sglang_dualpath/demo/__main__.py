"""`python -m sglang_dualpath.demo`: the same agents with one read path, then with both."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sglang_dualpath.bench.generate import agent_trace
from sglang_dualpath.bench.metrics import SideReads, summarise
from sglang_dualpath.bench.replay import ReplayOptions, TurnResult, replay, warm_up
from sglang_dualpath.bench.report import ComparisonFile, ReplayReport, chart, save, table
from sglang_dualpath.bench.trace import Trace
from sglang_dualpath.checkpoints.__main__ import make
from sglang_dualpath.config import parse_size_bytes
from sglang_dualpath.demo.cluster import Cluster, ClusterSettings, running
from sglang_dualpath.demo.model_size import kv_token_bytes
from sglang_dualpath.demo.process import ServerFailed
from sglang_dualpath.demo.steps import Steps
from sglang_dualpath.demo.upstream import UpstreamCluster, running_upstream

UPSTREAM_CACHE_TOKENS = 24_576
"""Device cache of the upstream column, less than its 1 GB of host memory, which HiCache requires."""

NIC_TOKENS_PER_S = 200
"""So slow that reading a context takes a few times as long as computing a turn on two cores, as it does on real clusters."""

COLUMNS_OF_OURS = 2
SHOWN_TURNS = 3
SHOWN_CHARACTERS = 160


def main() -> None:
    """The command line."""
    arguments = _parse()
    console = Console()
    # A terminal's Ctrl-C reaches only this process: the servers are in groups of their own, and stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(arguments, console)
    except KeyboardInterrupt:
        console.print("\ninterrupted; everything that was started has been stopped")
        sys.exit(130)
    except ServerFailed as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        sys.exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dualpath.demo",
        description="Replay a few agents on real engines on this machine, their cached KV read by the prefill engine "
        "alone, then by both engines, over the same emulated storage NICs.",
    )
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="where checkpoints are kept (default models)"
    )
    parser.add_argument("--results", type=Path, default=Path("results/demo"), help="for table, chart, logs")
    parser.add_argument("--baseline", choices=("upstream",), help="also unmodified upstream PD + HiCache")
    parser.add_argument("--agents", type=int, default=5, help="agents at once (default %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="turns an agent (default %(default)s)")
    parser.add_argument("--context-words", type=int, default=600, help="mean opening context (default %(default)s)")
    parser.add_argument("--appended-words", type=int, default=16, help="mean tool output a turn (default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=6, help="mean answer (default %(default)s)")
    parser.add_argument(
        "--bandwidth",
        type=parse_size_bytes,
        default=None,
        help=f"bytes/s of each node's NIC (default: {NIC_TOKENS_PER_S} tokens of KV a second, as this CPU stores them)",
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _run(arguments: argparse.Namespace, console: Console) -> None:
    began = time.monotonic()
    results: Path = arguments.results.resolve()
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    model = (arguments.models / "smollm2").resolve()
    with console.status("making the SmolLM2-135M-Instruct checkpoint (once)"):
        make("smollm2", model, "bfloat16")
    if arguments.bandwidth is None:
        arguments.bandwidth = NIC_TOKENS_PER_S * kv_token_bytes(model)
    trace = agent_trace(
        arguments.seed,
        arguments.agents,
        arguments.turns,
        arguments.context_words,
        arguments.appended_words,
        arguments.output_tokens,
    )
    console.print(
        f"{arguments.agents} agents, {arguments.turns} turns each, real engines and model on this machine; "
        f"[bold]emulated[/bold]: a storage NIC of {arguments.bandwidth / 1e6:.0f} MB/s on each of two nodes"
    )
    with tempfile.TemporaryDirectory(prefix="dualpath-demo-") as scratch:
        stores = Stores(Path(scratch))
        reports = [
            _column(console, name, trace, stores.of(kv_path), _ours(arguments, model, kv_path, stores, results))
            for name, kv_path in (("prefill path only", "prefill"), ("both paths", "dual"))
        ]
        failed = _add_baseline(arguments, console, trace, model, stores, results, reports)
    _show(arguments, trace, reports, results, console)
    console.print(f"the whole demo took {(time.monotonic() - began) / 60:.1f} minutes")
    if failed is not None:
        raise failed


def _add_baseline(
    arguments: argparse.Namespace,
    console: Console,
    trace: Trace,
    model: Path,
    stores: "Stores",
    results: Path,
    reports: list[ReplayReport],
) -> ServerFailed | None:
    """The column of upstream, if it was asked for; should it fail, ours are shown before that is said."""
    if not arguments.baseline:
        return None
    try:
        opened = _upstream(arguments, model, stores, results)
        reports.append(_column(console, "upstream PD + HiCache", trace, None, opened))
    except ServerFailed as error:
        return error
    return None


class Stores:
    """Each column's store: the opening contexts are computed and persisted once, and linked for the next column."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.warm = scratch / "warm"

    def path(self, column: str) -> Path:
        """Where a column's store lies."""
        return self._scratch / f"store-{column}"

    def of(self, column: str) -> "ColumnStore":
        """A column's store and the warm one."""
        return ColumnStore(self.path(column), self.warm)


@dataclass(frozen=True, slots=True)
class ColumnStore:
    """A store, and where the blocks of the opening contexts are kept for the columns after the first."""

    path: Path
    warm: Path

    def prepare(self) -> bool:
        """Put the opening contexts in; False when they have yet to be computed."""
        if not self.warm.exists():
            return False
        _link_tree(self.warm, self.path)
        return True

    def keep(self) -> None:
        """The opening contexts are in: keep them for the next columns."""
        _link_tree(self.path, self.warm)


OnWait = Callable[[str], None]
Opened = Callable[[OnWait], AbstractContextManager["Cluster | UpstreamCluster"]]


def _ours(arguments: argparse.Namespace, model: Path, kv_path: str, stores: Stores, results: Path) -> Opened:
    logs = results / kv_path
    logs.mkdir()
    settings = ClusterSettings(model, kv_path, stores.path(kv_path), logs, arguments.bandwidth)
    return lambda on_wait: running(settings, on_wait)


def _upstream(arguments: argparse.Namespace, model: Path, stores: Stores, results: Path) -> Opened:
    logs = results / "upstream"
    logs.mkdir()
    store = stores.path("upstream")
    return lambda on_wait: running_upstream(model, store, logs, arguments.bandwidth, UPSTREAM_CACHE_TOKENS, on_wait)


def _column(console: Console, name: str, trace: Trace, store: ColumnStore | None, opened: Opened) -> ReplayReport:
    """One configuration: start, have the opening contexts in its store, replay, stop."""
    is_warm = store is not None and store.prepare()
    with Steps(console, name) as steps:
        steps.say("starting engines, which takes a minute")
        with opened(lambda server: steps.say(f"waiting for the {server} server")) as cluster:
            if not is_warm:
                advance = steps.count("opening contexts into the store", len(trace.sessions))
                asyncio.run(warm_up(cluster.url, trace, ReplayOptions(), advance))
                _wait_written(cluster)
                if store is not None:
                    store.keep()
            cluster.flush()
            before = cluster.reads()
            advance = steps.count("agents' turns", sum(len(session.turns) for session in trace.sessions))
            turns = asyncio.run(replay(cluster.url, trace, ReplayOptions(), advance))
            reads = [
                SideReads(node=late.node, bytes_read=late.bytes_read - early.bytes_read)
                for early, late in zip(before, cluster.reads(), strict=True)
            ]
            steps.say("stopping")
            return ReplayReport(summary=summarise(name, turns, reads, cluster.fallbacks()), turns=turns)


def _wait_written(cluster: "Cluster | UpstreamCluster") -> None:
    while cluster.pending_writes():
        time.sleep(0.2)


def _link_tree(source: Path, target: Path) -> None:
    """The same blocks under another directory: blocks never change, so links do."""
    shutil.copytree(source, target, copy_function=os.link)


def _show(
    arguments: argparse.Namespace, trace: Trace, reports: list[ReplayReport], results: Path, console: Console
) -> None:
    comparison = ComparisonFile(
        trace=trace.source,
        conditions={
            "emulated": f"storage NIC of {arguments.bandwidth / 1e6:.0f} MB/s a node",
            "real": "SGLang engines, Mooncake TCP transport, SmolLM2-135M-Instruct on this machine's CPU",
            "agents": f"{arguments.agents} x {arguments.turns} turns",
        },
        replays=reports,
    )
    if len(reports) > COLUMNS_OF_OURS:
        comparison.conditions["upstream"] = "its caches hold all contexts after one read; our columns read every turn"
    save(results / "demo.json", comparison)
    chart(results / "demo.png", comparison)
    console.print()
    console.print(table([report.summary for report in reports]))
    console.print("\nWhat the model wrote (both paths):")
    for turn in _some_turns(reports[1].turns):
        text = " ".join(turn.text.split())[:SHOWN_CHARACTERS]
        console.print(f"  {turn.session_id}, turn {turn.turn + 1}, {turn.prompt_tokens} tokens of prompt: {text!r}")
    basic, dual = reports[0].summary, reports[1].summary
    if len(reports) > COLUMNS_OF_OURS:
        console.print(f"\nupstream: {comparison.conditions['upstream']}")
    console.print(
        f"\nJCT {basic.jct_s:.1f} s -> {dual.jct_s:.1f} s: {basic.jct_s / dual.jct_s:.2f} times faster with both paths "
        "(2 is the limit with one engine of each kind)"
    )
    console.print(
        f"chart: {results / 'demo.png'}\nfigures: {results / 'demo.json'}\nlogs: {results}/*/", highlight=False
    )


def _some_turns(turns: list[TurnResult]) -> list[TurnResult]:
    good = [turn for turn in turns if turn.error is None and turn.text.strip()]
    return sorted(good, key=lambda turn: (turn.turn, turn.session_id))[-SHOWN_TURNS:]


if __name__ == "__main__":
    main()

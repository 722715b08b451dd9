"""What a person sees of replays: a table, a chart, a file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from sglang_dualpath.bench.metrics import Summary
from sglang_dualpath.bench.replay import TurnResult


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replay with all its turns."""

    summary: Summary
    turns: list[TurnResult]


class ComparisonFile(msgspec.Struct, frozen=True, kw_only=True):
    """Several replays of one trace, and what was emulated in them."""

    trace: str
    conditions: dict[str, str]
    replays: list[ReplayReport]


def table(summaries: Sequence[Summary]) -> Table:
    """One column a replay; the first is what the others are compared with."""
    result = Table(title=None, show_header=True, header_style="bold")
    result.add_column("")
    for summary in summaries:
        result.add_column(summary.name, justify="right")
    nodes = max(len(summary.reads) for summary in summaries)
    rows: list[tuple[str, list[str]]] = [
        ("JCT, s", [f"{s.jct_s:.1f}" for s in summaries]),
        ("JCT ratio to the first", [f"{summaries[0].jct_s / s.jct_s:.2f}" for s in summaries]),
        ("TTFT p50, s", [f"{s.ttft_p50_s:.2f}" for s in summaries]),
        ("TTFT p90, s", [f"{s.ttft_p90_s:.2f}" for s in summaries]),
        ("TPOT mean, s", [f"{s.tpot_mean_s:.3f}" for s in summaries]),
        ("turns answered / failed", [f"{s.turns} / {s.failed_turns}" for s in summaries]),
        ("hit ratio", [f"{100 * s.hit_ratio:.1f} %" for s in summaries]),
        *(
            (f"read by {('prefill', 'decode')[i]} node, MB", [_megabytes(s, i) for s in summaries])
            for i in range(nodes)
        ),
        ("storage NICs, Max/Avg", [f"{s.nic_max_over_avg:.2f}" for s in summaries]),
        ("fallbacks", [str(sum(s.fallbacks.values())) for s in summaries]),
    ]
    for name, cells in rows:
        result.add_row(name, *cells)
    return result


def _megabytes(summary: Summary, index: int) -> str:
    return f"{summary.reads[index].bytes_read / 1e6:.0f}" if index < len(summary.reads) else "not counted"


def save(path: Path, comparison: ComparisonFile) -> None:
    """Write everything that was measured as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1))


def load(path: Path) -> ComparisonFile:
    """Read what `save` wrote. Raises ValueError for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ComparisonFile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a comparison file: {error}") from None


def chart(path: Path, comparison: ComparisonFile) -> None:
    """A PNG: turns done over time, bytes read a node, and TTFT."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (progress, reads, latency) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names = [replay.summary.name for replay in comparison.replays]
    for replay in comparison.replays:
        ends = sorted(turn.ended_s for turn in replay.turns if turn.error is None)
        progress.step([0, *ends], range(len(ends) + 1), where="post", label=replay.summary.name)
    progress.set(xlabel="seconds", ylabel="turns answered", title="All agents to their end")
    progress.legend()
    bottom = [0.0] * len(names)
    for index, role in enumerate(("prefill node", "decode node")):
        heights = [
            r.summary.reads[index].bytes_read / 1e6 if index < len(r.summary.reads) else 0.0 for r in comparison.replays
        ]
        reads.bar(names, heights, bottom=bottom, label=role)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    reads.set(ylabel="MB read from the store", title="Who read the cached KV")
    reads.legend()
    latency.boxplot([[t.ttft_s for t in r.turns if t.error is None] for r in comparison.replays], tick_labels=names)
    latency.set(ylabel="TTFT, s", title="Time to first token")
    figure.suptitle("; ".join(f"{key}: {value}" for key, value in comparison.conditions.items()), fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

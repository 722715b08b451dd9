"""The decision mix as tables."""

import statistics
from collections import Counter

from rich.console import Console, Group
from rich.table import Table

from sglang_dualpath.router.dry_run.replay import DecisionMix


def tables(mix: DecisionMix, policy: str, n_engines: tuple[int, int]) -> Group:
    """What a person wants to know of it."""
    head = Table(
        title=f"{policy}, {n_engines[0]} prefill and {n_engines[1]} decode engines (dry run)", show_header=False
    )
    waited = sorted(mix.waited_s)
    rows = {
        "requests": f"{mix.n_requests:,}, placed {mix.n_placed:,}",
        "trace": f"{mix.lasted_s:,.0f} s, {mix.prompt_tokens:,} prompt tokens",
        "expected hits in engine memory": f"{mix.expected_hit_tokens / max(1, mix.prompt_tokens):.1%} of prompt tokens",
        "in the router's queue": f"p50 {_quantile(waited, 0.5):.2f} s, p90 {_quantile(waited, 0.9):.2f} s",
        "rebalanced": f"{mix.rebalanced:,}",
        "prefill engines, most / average": _max_over_avg(mix.prefill, n_engines[0]),
        "decode engines, most / average": _max_over_avg(mix.decode, n_engines[1]),
        "storage NICs, most / average": _max_over_avg(mix.node_read_tokens, sum(n_engines)),
    }
    for name, value in rows.items():
        head.add_row(name, value)
    return Group(head, _shares("rule that chose the prefill engine", mix.reasons), _shares("read side", mix.sides))


def show(mix: DecisionMix, policy: str, n_engines: tuple[int, int], console: Console) -> None:
    """Print them."""
    console.print(tables(mix, policy, n_engines))


def _shares(title: str, counts: Counter[str]) -> Table:
    table = Table(title)
    table.add_column("requests", justify="right")
    table.add_column("share", justify="right")
    for name, count in counts.most_common():
        table.add_row(name, f"{count:,}", f"{count / counts.total():.1%}")
    return table


def _max_over_avg(counts: Counter[str], n: int) -> str:
    values = [*counts.values(), *[0] * (n - len(counts))]
    average = statistics.fmean(values) if values else 0.0
    return f"{max(values) / average:.2f}" if average else "-"


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

"""From single turns to the figures the papers report. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np

from sglang_dualpath.bench.replay import TurnResult


class SideReads(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes one node's storage NIC has read during a replay."""

    node: str
    bytes_read: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One replay in figures."""

    name: str
    jct_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_mean_s: float
    turns: int
    failed_turns: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reads: list[SideReads]
    fallbacks: dict[str, int]

    @property
    def hit_ratio(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def nic_max_over_avg(self) -> float:
        """Bytes of the busiest storage NIC over the mean of all: 1 is perfect balance."""
        sizes = [side.bytes_read for side in self.reads]
        mean = sum(sizes) / len(sizes) if sizes else 0.0
        return max(sizes) / mean if mean else float("nan")


def summarise(name: str, turns: Sequence[TurnResult], reads: list[SideReads], fallbacks: dict[str, int]) -> Summary:
    """The figures of one replay; failed turns count as such and in nothing else. Raises ValueError without a good turn."""
    good = [turn for turn in turns if turn.error is None]
    if not good:
        raise ValueError(f"no turn of {name} was answered: {turns[0].error if turns else 'none was asked'}")
    ttft = [turn.ttft_s for turn in good]
    tpot = [turn.tpot_s for turn in good if turn.tpot_s is not None]
    return Summary(
        name=name,
        jct_s=max(turn.ended_s for turn in good),
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p90_s=float(np.percentile(ttft, 90)),
        tpot_mean_s=float(np.mean(tpot)) if tpot else float("nan"),
        turns=len(good),
        failed_turns=len(turns) - len(good),
        prompt_tokens=sum(turn.prompt_tokens for turn in good),
        cached_tokens=sum(turn.cached_tokens for turn in good),
        output_tokens=sum(turn.output_tokens for turn in good),
        reads=reads,
        fallbacks=fallbacks,
    )

"""Counting what the store answered."""

from collections.abc import Iterable
from typing import Protocol

from sglang_dualpath.store.block_store import ReadOutcome


class FallbackCounters(Protocol):
    """Where a fallback is counted (`telemetry.counters.EngineCounters`)."""

    def fallback(self, reason: str, detail: str) -> None: ...


def count_read_outcomes(counters: FallbackCounters, outcomes: Iterable[ReadOutcome]) -> None:
    """Count and log each corrupt or truncated block among a batch's outcomes."""
    for outcome in outcomes:
        if outcome is ReadOutcome.CORRUPT:
            counters.fallback(
                "block_corrupt", "a block's checksum does not match its content; removed, to be written anew"
            )
        elif outcome is ReadOutcome.TRUNCATED:
            counters.fallback("block_truncated", "a block is shorter than its header says; removed, to be written anew")

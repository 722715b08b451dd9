"""What the store answered, counted: bad blocks are fallbacks, missing and skipped ones are not."""

import pytest
from sglang_dualpath.store.block_store import ReadOutcome
from sglang_dualpath.store.outcome import count_read_outcomes


class Heard:
    """A counter that remembers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def fallback(self, reason: str, detail: str) -> None:
        """Remember the reason."""
        assert detail
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("outcome", "reasons"),
    [
        (ReadOutcome.OK, []),
        (ReadOutcome.MISSING, []),
        (ReadOutcome.SKIPPED, []),
        (ReadOutcome.FAILED, []),
        (ReadOutcome.CORRUPT, ["block_corrupt"] * 2),
        (ReadOutcome.TRUNCATED, ["block_truncated"] * 2),
    ],
)
def test_each_bad_block_counts_once(outcome: ReadOutcome, reasons: list[str]) -> None:
    heard = Heard()
    count_read_outcomes(heard, [ReadOutcome.OK, outcome, outcome])
    assert heard.reasons == reasons

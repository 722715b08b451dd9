"""One machine's storage NIC as scheduling sees it.

Its read queue is the reported one plus the reads assigned since; one assigned up to `REPORT_LAG_S` before a report may not stand
in it yet, and counts still.
"""

from collections import deque
from dataclasses import dataclass, field

REPORT_LAG_S = 0.15
"""The time a request takes into the queue."""


@dataclass(slots=True, eq=False)
class Node:
    """One machine: its engines share its storage NIC, and so its read queue."""

    node_id: str
    read_q_tokens: int = 0
    """Tokens waiting in its storage read queue: reported, plus what has been assigned since."""
    read_tokens_per_s: float | None = None
    """What its storage NIC delivers; None when unlimited or unknown."""
    reported_q_tokens: int | None = None
    recent_reads: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and how many tokens: reads that the last report may not hold; none while there is no report."""
    recent_tokens: int = 0
    """Their sum."""
    n_engines: int = 0
    """Engines on it that are known."""
    own_reads_tokens: int = 0
    """Of requests assigned here whose prefill has not ended: all there is to go by without reports."""

    def settle(self) -> None:
        """Bring `read_q_tokens` up to date."""
        if self.reported_q_tokens is None:
            self.read_q_tokens = self.own_reads_tokens
        else:
            self.read_q_tokens = self.reported_q_tokens + self.recent_tokens

    def assign(self, tokens: int, now_s: float) -> None:
        """A read of `tokens` has been planned on it."""
        self.own_reads_tokens += tokens
        if self.reported_q_tokens is not None:
            self.recent_reads.append((now_s, tokens))
            self.recent_tokens += tokens
        self.settle()

    def release(self, tokens: int) -> None:
        """A read that was planned here is over."""
        self.own_reads_tokens -= tokens
        self.settle()

    def report(self, queued_tokens: int | None, now_s: float) -> None:
        """Its queue, as reported just now; None: no fresh report is left."""
        self.reported_q_tokens = queued_tokens
        if queued_tokens is None:
            self.read_tokens_per_s = None
        while self.recent_reads and (queued_tokens is None or self.recent_reads[0][0] < now_s - REPORT_LAG_S):
            self.recent_tokens -= self.recent_reads.popleft()[1]
        self.settle()

"""What the front asks of the scheduling core, and what it tells it."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from sglang_dualpath.router.scheduling.request import Request

Outcome = Literal[
    "ok", "client_gone", "timeout", "bad_request", "engine_error", "engine_lost", "unreachable", "no_engine", "queue_full",
    "queue_timeout",
]  # fmt: skip


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The engines of one request."""

    ticket: str
    """Names it to the core."""
    prefill_url: str
    bootstrap_port: int | None
    prefill_rank: int | None
    decode_url: str
    decode_rank: int | None
    decode_read_share: float
    expected_hit_tokens: int
    reason: str
    waited_s: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How one placed request ended."""

    ticket: str
    outcome: Outcome
    failed_url: str | None = None
    """The engine to blame, if one is."""
    ttft_s: float | None = None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a client's request ended."""

    outcome: Outcome
    retries: int = 0


class NotPlaced(Exception):
    """No engines for a request; `outcome` says why, the text what can be done."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome


class Core(Protocol):
    """The scheduling core as the front sees it: in the same process, or behind a socket."""

    async def place(self, request: Request) -> Placement:
        """The engines of a request, as soon as there are any; cancelling it gives the place in the queue up.

        Raises NotPlaced.
        """
        ...

    def prefill_done(self, ticket: str) -> None:
        """The prefill engine has done its part; the decode engine goes on."""
        ...

    def end(self, ended: Ended) -> None:
        """A placed request is over; every placement is ended exactly once."""
        ...

    def note(self, finished: Finished) -> None:
        """A client's request is over, placed or not, after all its tries."""
        ...

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called with the URL of each server that is found dead."""
        ...

"""The interface between the scheduler and what chooses prefill engines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Choice:
    """A prefill engine, and the rule that chose it."""

    engine: Engine
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """A request that waits for one engine's turn should wait for another's."""

    request: Request
    source: Engine
    target: Engine


class Policy(Protocol):
    """Chooses prefill engines. May keep state of its own; never does I/O, never reads a clock, draws chance only from the
    seed it was made with."""

    uses_hits: bool
    """Whether what engines hold matters to it; if not, it is not kept."""

    holds: bool
    """Whether a request that it gives to an overloaded engine (C1) is held back until that has worked some off."""

    def joined(self, engine: Engine) -> None:
        """A prefill engine may be chosen from now on."""
        ...

    def left(self, engine: Engine) -> None:
        """A prefill engine may no longer be chosen: gone, failing or draining."""
        ...

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """One of `engines` (those that have joined, less `request.passed_over`; at least one); None: no engine may take
        any request, so the head of the line waits, and all behind it.

        Called again for a waiting or held request whenever something has changed.
        """
        ...

    def assigned(self, request: Request, engine: Engine, now_s: float) -> None:
        """The request has been given to `engine`, which the policy had chosen."""
        ...

    def rebalance(self, waiting: Iterable[tuple[Request, Engine]], now_s: float) -> list[Move]:
        """Requests held back for an engine that should go to another; most policies have none."""
        ...

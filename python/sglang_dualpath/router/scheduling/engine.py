"""What a policy sees and says: engines, one request's facts, an assignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

ReadSide = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine at the moment of a decision: its last report, and what was assigned to it since.

    Without a fresh report the queue is what the router itself has assigned, and alpha and beta are None: never overloaded,
    always short.
    """

    url: str
    role: Literal["prefill", "decode"]
    seq: int
    tok: int
    read_q_tokens: int
    dual: bool
    """Whether it takes part in decode-side reads."""
    alpha_tokens: int | None = None
    beta_tokens: int | None = None
    free_buffer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the router knows of a request without a tokenizer."""

    prompt_tokens: int
    """Exact for token ids, else estimated from the text's length."""
    read_side: ReadSide | None = None
    """Demanded by a plan that came with the request: holds instead of the policy's."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a request goes."""

    prefill_url: str
    decode_url: str
    read_side: ReadSide


class Policy(Protocol):
    """Chooses for one request at a time. May keep state of its own; never does I/O."""

    def assign(
        self, request: RequestFacts, prefill: Sequence[EngineLoad], decode: Sequence[EngineLoad]
    ) -> Assignment | None:
        """The engines and the read side; None: no engine may take the request now, let it wait. Both lists hold at least
        one engine, all of them healthy."""
        ...

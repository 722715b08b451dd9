"""What scheduling knows of one request, and what it decides about it."""

from dataclasses import dataclass, field
from typing import Literal

from sglang_dualpath.router.scheduling.marks import Marks


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival until it is assigned."""

    request_id: str
    prompt_tokens: int
    """Exact for token ids, else estimated from the text's length."""
    arrived_s: float
    keys: tuple[int, ...] = ()
    """One 64-bit chained hash a full block of `marks.KEY_BLOCK_TOKENS`: equal keys mean equal prefixes up to their end."""
    output_tokens: int = 0
    """Most tokens it may generate; 0 when unknown."""
    priority: int = 0
    read_side: Literal["prefill", "decode"] | None = None
    """Demanded by a plan that came with the request: holds instead of the policy's."""
    passed_over: frozenset[str] = field(default_factory=frozenset)
    """Servers that have failed this request already."""
    hits_seen: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)
    """Look-ups in tables of prefixes: by table, its version and the tokens found."""
    _marks: Marks | None = field(default=None, init=False, repr=False)

    @property
    def marks(self) -> Marks:
        """Its keys, as caches know them; made once."""
        if self._marks is None:
            self._marks = Marks.of(self.keys)
        return self._marks


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a request goes."""

    request_id: str
    prefill_id: str
    decode_id: str
    decode_read_share: float
    """Of its cached blocks, the share that the decode side reads: 0 is path A, 1 is path B."""
    expected_hit_tokens: int
    """Tokens of its prompt that the prefill engine probably still holds in its own memory."""
    reason: str
    """The rule that chose the prefill engine, for metrics: a short fixed word of the policy."""

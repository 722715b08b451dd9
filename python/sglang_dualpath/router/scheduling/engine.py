"""One engine as scheduling sees it."""

from dataclasses import dataclass, field
from typing import Literal

from sglang_dualpath.router.scheduling.cached_blocks import CachedBlocks
from sglang_dualpath.router.scheduling.node import Node
from sglang_dualpath.router.scheduling.request import Request

Role = Literal["prefill", "decode"]


@dataclass(slots=True, eq=False)
class Engine:
    """One data-parallel rank of one server."""

    engine_id: str
    """`URL`, or `URL@RANK` for one of several data-parallel ranks."""
    role: Role
    group: str
    """The server's URL; all its ranks form one group, led by rank 0."""
    node: Node
    available: bool = False
    dual: bool = False
    """Whether it takes part in decode-side reads."""
    seq: int = 0
    """Unfinished requests: reported or assigned, whichever knows more."""
    tok: int = 0
    """Their tokens, cached ones included."""
    pending_new_tokens: int = 0
    """Of the requests assigned and not yet prefilled: tokens that must be computed."""
    alpha_tokens: float | None = None
    """Tokens its node reads in 3 s; None (unknown): no queue counts as long."""
    beta_tokens: float | None = None
    """Tokens it processes in 5 s; None (unknown): never overloaded."""
    compute_tokens_per_s: float | None = None
    """New prompt tokens computed a second."""
    free_kv_tokens: int | None = None
    """Room in device memory, less what has been assigned since; None when unknown."""
    free_buffer_tokens: int | None = None
    """Room in its DRAM buffer, likewise."""
    cached: CachedBlocks = field(default_factory=CachedBlocks)
    """Key blocks it probably still holds in its own memory."""
    stored: CachedBlocks | None = None
    """Key blocks that any engine has persisted; shared by all. None where engines have no store in common."""
    own_seq: int = 0
    own_tok: int = 0
    surplus_seq: int = 0
    surplus_tok: int = 0
    reported_at_s: float | None = None

    @property
    def overloaded(self) -> bool:
        """Whether it is in C1 (paper, Algorithm 1): it gets nothing."""
        return self.beta_tokens is not None and self.tok > self.beta_tokens

    def known_tokens(self, request: Request) -> int:
        """Tokens of a prompt that it need not compute: in its own memory, or in the store."""
        held = hit_tokens(self.cached, request)
        stored = 0 if self.stored is None else hit_tokens(self.stored, request)
        return min(max(held, stored), request.prompt_tokens - 1)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a prompt that it probably holds in its own memory."""
        return hit_tokens(self.cached, request)

    def settle(self) -> None:
        """Bring `seq` and `tok` up to date."""
        self.seq = self.own_seq + self.surplus_seq
        self.tok = self.own_tok + self.surplus_tok


def hit_tokens(cached: CachedBlocks, request: Request) -> int:
    """What `cached` holds of a prompt, looked up again only when something has been inserted."""
    seen = request.hits_seen.get(id(cached))
    if seen is not None and seen[0] == cached.version:
        return seen[1]
    tokens = cached.hit_tokens(request.marks)
    request.hits_seen[id(cached)] = (cached.version, tokens)
    return tokens

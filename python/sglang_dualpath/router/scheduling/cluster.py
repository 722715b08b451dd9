"""The engines as scheduling sees them: plain state, updated by reports and by what is assigned. Every update is O(1).

An engine's seq and tok are what has been assigned to it here plus the surplus its last report showed beyond that, so neither is
ever forgotten. A node's read queue is the reported one plus the reads assigned since; one assigned up to `REPORT_LAG_S` before a
report may not stand in it yet, and counts still.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from sglang_dualpath.router.scheduling.cached_blocks import CachedBlocks
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.request import Request

Role = Literal["prefill", "decode"]

REPORT_FRESH_S = 5.0
"""A report older than this counts as none."""

REPORT_LAG_S = 0.15

STORED_MARKS = 1 << 16
"""Marks remembered as persisted: 24 million tokens of long prompts in 768 KiB, for the whole cluster."""


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
        while self.recent_reads and (queued_tokens is None or self.recent_reads[0][0] < now_s - REPORT_LAG_S):
            self.recent_tokens -= self.recent_reads.popleft()[1]
        self.settle()


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


@dataclass(slots=True)
class Work:
    """What one assigned request weighs on its two engines, to be taken off again."""

    prefill: Engine
    decode: Engine
    nodes: tuple[Node, Node]
    prompt_tokens: int
    new_tokens: int
    decode_tokens: int
    prefill_reads_tokens: int
    decode_reads_tokens: int
    prefilling: bool = True


class Cluster:
    """All engines, and the work assigned to them."""

    def __init__(self, shared_store: bool = True) -> None:
        self.stored = CachedBlocks(STORED_MARKS) if shared_store else None
        self.engines: dict[str, Engine] = {}
        self.nodes: dict[str, Node] = {}
        self.prefill: list[Engine] = []
        """Those that may be chosen now, in the order they joined."""
        self.decode: list[Engine] = []
        self.work: dict[str, Work] = {}
        self.n_unknown_reports = 0
        self._next_expiry_s = 0.0

    def join(self, engine_id: str, role: Role, group: str, node_id: str) -> Engine:
        """Make an engine known, not available yet. Raises ValueError for one that is known already."""
        if engine_id in self.engines:
            raise ValueError(f"engine {engine_id} has joined already")
        engine = Engine(engine_id, role, group, self._node(node_id), stored=self.stored)
        self.engines[engine_id] = engine
        return engine

    def leave(self, engine_id: str) -> Engine | None:
        """Forget an engine; work on it ends as it would have."""
        engine = self.engines.pop(engine_id, None)
        if engine is not None:
            self.set_available(engine, False)
        return engine

    def set_available(self, engine: Engine, available: bool) -> bool:
        """Whether an engine may be chosen; returns whether that is new."""
        if engine.available == available:
            return False
        engine.available = available
        chosen_from = self.prefill if engine.role == "prefill" else self.decode
        if available:
            chosen_from.append(engine)
        else:
            chosen_from.remove(engine)
        return True

    def report(self, report: LoadReport, now_s: float) -> Engine | None:
        """Note an engine's report; None (and counted) for an engine nobody knows."""
        engine = self.engines.get(report.engine_id)
        if engine is None:
            self.n_unknown_reports += 1
            return None
        engine.surplus_seq = max(0, report.seq - engine.own_seq)
        engine.surplus_tok = max(0, report.tok - engine.own_tok)
        engine.settle()
        engine.dual = report.dual
        engine.alpha_tokens, engine.beta_tokens = report.alpha_tokens, report.beta_tokens
        engine.compute_tokens_per_s = report.compute_tokens_per_s
        engine.free_kv_tokens, engine.free_buffer_tokens = report.free_kv_tokens, report.free_buffer_tokens
        engine.reported_at_s = now_s
        if engine.node.node_id != report.node_id:
            engine.node = self._node(report.node_id)
        node = engine.node
        node.read_tokens_per_s = report.read_tokens_per_s
        node.report(report.read_q_tokens, now_s)
        return engine

    def begin(self, request: Request, engines: tuple[Engine, Engine], share: float, known: int, now_s: float) -> None:
        """Count a request on its prefill and decode engine: the decode side reads `share` of its cached blocks, and `known`
        tokens need not be computed."""
        prefill, decode = engines
        tokens = request.prompt_tokens
        work = Work(
            prefill=prefill,
            decode=decode,
            nodes=(prefill.node, decode.node),
            prompt_tokens=tokens,
            new_tokens=max(1, tokens - known),
            decode_tokens=tokens + request.output_tokens,
            prefill_reads_tokens=round(tokens * (1 - share)),
            decode_reads_tokens=round(tokens * share),
        )
        self.work[request.request_id] = work
        for engine in engines:
            engine.own_seq += 1
            engine.own_tok += tokens
            engine.settle()
        prefill.node.assign(work.prefill_reads_tokens, now_s)
        decode.node.assign(work.decode_reads_tokens, now_s)
        prefill.pending_new_tokens += work.new_tokens
        if decode.free_kv_tokens is not None:
            decode.free_kv_tokens -= work.decode_tokens
        if decode.free_buffer_tokens is not None:
            decode.free_buffer_tokens -= tokens

    def end_prefill(self, request_id: str) -> bool:
        """The prefill engine is done with a request; False when that is known already."""
        work = self.work.get(request_id)
        if work is None or not work.prefilling:
            return False
        work.prefilling = False
        work.prefill.pending_new_tokens -= work.new_tokens
        self._take_off(work.prefill, work.prompt_tokens)
        work.nodes[0].release(work.prefill_reads_tokens)
        work.nodes[1].release(work.decode_reads_tokens)
        return True

    def end(self, request_id: str) -> bool:
        """A request is over; False when that is known already."""
        self.end_prefill(request_id)
        work = self.work.pop(request_id, None)
        if work is None:
            return False
        self._take_off(work.decode, work.prompt_tokens)
        return True

    def expire(self, now_s: float) -> None:
        """Forget what reports older than `REPORT_FRESH_S` said; looks at most once a second."""
        if now_s < self._next_expiry_s:
            return
        self._next_expiry_s = now_s + 1.0
        for engine in self.engines.values():
            if engine.reported_at_s is None or now_s - engine.reported_at_s <= REPORT_FRESH_S:
                continue
            engine.reported_at_s = None
            engine.surplus_seq = engine.surplus_tok = 0
            engine.dual = False
            engine.alpha_tokens = engine.beta_tokens = engine.compute_tokens_per_s = None
            engine.free_kv_tokens = engine.free_buffer_tokens = None
            engine.settle()
        fresh = {engine.node.node_id for engine in self.engines.values() if engine.reported_at_s is not None}
        for node in self.nodes.values():
            if node.node_id not in fresh:
                node.report(None, now_s)

    def _take_off(self, engine: Engine, tokens: int) -> None:
        engine.own_seq -= 1
        engine.own_tok -= tokens
        engine.settle()

    def _node(self, node_id: str) -> Node:
        return self.nodes.setdefault(node_id, Node(node_id))

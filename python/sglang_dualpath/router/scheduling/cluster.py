"""The engines as scheduling sees them: plain state, updated by reports and by what is assigned. Every update is O(1).

An engine's seq and tok are what has been assigned to it here plus the surplus its last report showed beyond that, so neither is
ever forgotten. A node's read queue is told in `scheduling.node`.
"""

from dataclasses import dataclass

from sglang_dualpath.router.scheduling.cached_blocks import CachedBlocks
from sglang_dualpath.router.scheduling.engine import Engine, Role
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.node import Node
from sglang_dualpath.router.scheduling.request import Request

REPORT_FRESH_S = 5.0
"""A report older than this counts as none."""

STORED_MARKS = 1 << 16
"""Marks remembered as persisted: 24 million tokens of long prompts in 768 KiB, for the whole cluster."""


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
        engine = Engine(engine_id, role, group, self._enter(node_id), stored=self.stored)
        self.engines[engine_id] = engine
        return engine

    def leave(self, engine_id: str) -> Engine | None:
        """Forget an engine; work on it ends as it would have."""
        engine = self.engines.pop(engine_id, None)
        if engine is not None:
            self.set_available(engine, False)
            self._depart(engine.node)
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
            self._depart(engine.node)
            engine.node = self._enter(report.node_id)
        node = engine.node
        node.read_tokens_per_s = report.read_tokens_per_s
        node.report(report.read_q_tokens, now_s)
        return engine

    def begin(self, request: Request, engines: tuple[Engine, Engine], share: float, known: int, now_s: float) -> None:
        """Count a request on its prefill and decode engine: the decode side reads `share` of its cached blocks, and `known`
        tokens need not be computed."""
        prefill, decode = engines
        tokens = request.prompt_tokens
        decode_reads_tokens = round(tokens * share)
        work = Work(
            prefill=prefill,
            decode=decode,
            nodes=(prefill.node, decode.node),
            prompt_tokens=tokens,
            new_tokens=max(1, tokens - known),
            decode_tokens=tokens + request.output_tokens,
            prefill_reads_tokens=tokens - decode_reads_tokens,
            decode_reads_tokens=decode_reads_tokens,
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

    def _enter(self, node_id: str) -> Node:
        node = self.nodes.setdefault(node_id, Node(node_id))
        node.n_engines += 1
        return node

    def _depart(self, node: Node) -> None:
        """An engine is on it no longer; with the last the node is forgotten, and work on it ends as it would have."""
        node.n_engines -= 1
        if not node.n_engines:
            del self.nodes[node.node_id]

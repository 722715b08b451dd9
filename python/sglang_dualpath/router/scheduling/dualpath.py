"""DualPath: classes of prefill engines, the least loaded decode engine, and the side with the shorter read queue.

Prefill (paper, Algorithm 1): C1 = {tok > beta} gets nothing; C2 = {read_q <= alpha, tok <= beta} comes before
C3 = {read_q > alpha, tok <= beta}; within a class the least tok. Decode: the least tok, then the least seq, among engines
whose buffer has room now, else among all. Read side: the shorter read queue; equal queues take turns.
Knobs: alpha and beta, reported by each engine.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad, ReadSide, RequestFacts


class DualPath:
    """See the module."""

    def __init__(self) -> None:
        self._ties = 0

    def assign(
        self, request: RequestFacts, prefill: Sequence[EngineLoad], decode: Sequence[EngineLoad]
    ) -> Assignment | None:
        """See `Policy.assign`; a request waits while every prefill engine is in C1."""
        prefill_engine = choose_prefill(prefill)
        if prefill_engine is None:
            return None
        decode_engine = choose_decode(request, decode)
        return Assignment(prefill_engine.url, decode_engine.url, self._read_side(prefill_engine, decode_engine))

    def _read_side(self, prefill_engine: EngineLoad, decode_engine: EngineLoad) -> ReadSide:
        if not (prefill_engine.dual and decode_engine.dual):
            return "prefill"
        if prefill_engine.read_q_tokens != decode_engine.read_q_tokens:
            return "prefill" if prefill_engine.read_q_tokens < decode_engine.read_q_tokens else "decode"
        self._ties += 1
        return "prefill" if self._ties % 2 else "decode"


def choose_prefill(engines: Sequence[EngineLoad]) -> EngineLoad | None:
    """The prefill engine of Algorithm 1; None when all are overloaded."""
    eligible = [engine for engine in engines if engine.beta_tokens is None or engine.tok <= engine.beta_tokens]
    short = [
        engine for engine in eligible if engine.alpha_tokens is None or engine.read_q_tokens <= engine.alpha_tokens
    ]
    candidates = short or eligible
    return min(candidates, key=lambda engine: (engine.tok, engine.seq, engine.url), default=None)


def choose_decode(request: RequestFacts, engines: Sequence[EngineLoad]) -> EngineLoad:
    """The least loaded decode engine, of those whose buffer takes the prompt now where there are any."""
    roomy = [
        engine
        for engine in engines
        if engine.free_buffer_tokens is None or engine.free_buffer_tokens >= request.prompt_tokens
    ]
    return min(roomy or engines, key=lambda engine: (engine.tok, engine.seq, engine.url))

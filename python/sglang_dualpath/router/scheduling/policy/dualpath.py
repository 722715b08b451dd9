"""DualPath: classes of prefill engines by their load and their node's read queue (paper, Algorithm 1).

C1 = {tok > beta} gets nothing; C2 = {read_q <= alpha, tok <= beta} comes before C3 = {read_q > alpha, tok <= beta}; within a
class the least tok, then the least seq, then who joined first. While all are in C1 the head of the line waits.
Knobs: alpha and beta, profiled and reported by each engine; one that reports none counts as C2.
"""

from collections.abc import Iterable, Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.request import Request


class DualPath(FreeChoice):
    """See the module."""

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        return best_of_classes(engines)


def best_of_classes(engines: Iterable[Engine]) -> Choice | None:
    """The engine of Algorithm 1; None while all are in C1."""
    short: Engine | None = None
    long: Engine | None = None
    for engine in engines:
        tok = engine.tok
        if short is not None and tok > short.tok:
            continue
        beta = engine.beta_tokens
        if beta is not None and tok > beta:
            continue
        alpha = engine.alpha_tokens
        if alpha is None or engine.node.read_q_tokens <= alpha:
            if short is None or tok < short.tok or (tok == short.tok and engine.seq < short.seq):
                short = engine
        elif long is None or tok < long.tok or (tok == long.tok and engine.seq < long.seq):
            long = engine
    if short is not None:
        return Choice(short, "short_read_queue")
    return None if long is None else Choice(long, "long_read_queue")

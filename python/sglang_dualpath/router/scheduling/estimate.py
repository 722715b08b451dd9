"""How long a request would wait for its first token."""

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.request import Request

COMPUTE_TOKENS_PER_S = 6250.0
"""Of an engine that has not reported its rate yet (DualMap's setting: 0.00016 s a token, Qwen2.5-7B)."""


def compute_rate_per_s(engine: Engine) -> float:
    """New prompt tokens the engine computes a second."""
    return engine.compute_tokens_per_s or COMPUTE_TOKENS_PER_S


def waiting_s(engine: Engine) -> float:
    """Until a request that came now would begin: what waits to be computed, or to be read, whichever takes longer."""
    compute_s = engine.pending_new_tokens / compute_rate_per_s(engine)
    rate = engine.node.read_tokens_per_s
    return compute_s if rate is None else max(compute_s, engine.node.read_q_tokens / rate)


def expected_ttft_s(engine: Engine, request: Request) -> float:
    """Waiting time plus the computing of what the engine neither holds nor finds in the store."""
    new_tokens = request.prompt_tokens - engine.known_tokens(request)
    return waiting_s(engine) + new_tokens / compute_rate_per_s(engine)

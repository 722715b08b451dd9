"""Hypothesis strategies for what policies see."""

from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.engine import EngineLoad, RequestFacts

# Small numbers, so that equal loads and full buffers come up often.
tokens = st.integers(0, 12)
requests = st.builds(RequestFacts, prompt_tokens=st.integers(1, 12))


def fleets(role: str) -> st.SearchStrategy[list[EngineLoad]]:
    """One to five engines of a role, with and without fresh reports."""
    engine = st.builds(
        EngineLoad,
        url=st.integers(0, 99).map(lambda i: f"http://{role}-{i}"),
        role=st.just(role),
        seq=st.integers(0, 4),
        tok=tokens,
        read_q_tokens=tokens,
        dual=st.booleans(),
        alpha_tokens=st.none() | tokens,
        beta_tokens=st.none() | tokens,
        free_buffer_tokens=st.none() | tokens,
    )
    return st.lists(engine, min_size=1, max_size=5, unique_by=lambda load: load.url)


def overloaded(engine: EngineLoad) -> bool:
    """Class C1 of the paper's Algorithm 1."""
    return engine.beta_tokens is not None and engine.tok > engine.beta_tokens


def short_queue(engine: EngineLoad) -> bool:
    """What sets class C2 apart from C3."""
    return engine.alpha_tokens is None or engine.read_q_tokens <= engine.alpha_tokens

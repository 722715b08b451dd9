"""Seeded sessions: the same for the same seed, shaped as asked."""

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.bench.generate import agent_trace


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), n_sessions=st.integers(1, 4), n_turns=st.integers(1, 4))
def test_a_seed_decides_everything(seed: int, n_sessions: int, n_turns: int) -> None:
    one = agent_trace(seed, n_sessions, n_turns, 300, 20, 8)
    assert agent_trace(seed, n_sessions, n_turns, 300, 20, 8) == one
    assert [len(session.turns) for session in one.sessions] == [n_turns] * n_sessions
    assert len({session.session_id for session in one.sessions}) == n_sessions


def test_other_seeds_and_other_agents_have_other_contexts() -> None:
    texts = [session.context_text for seed in (1, 2) for session in agent_trace(seed, 3, 1, 200, 10, 4).sessions]
    assert len(set(texts)) == 6


def test_lengths_follow_the_asked_means() -> None:
    trace = agent_trace(5, 2, 50, 1000, 40, 20)
    for session in trace.sessions:
        # A line is never cut, so a context ends up to one line late.
        assert 1000 <= len(session.context_text.split()) <= 1020
    words = [len(turn.appended_text.split()) for session in trace.sessions for turn in session.turns]
    assert 30 <= sum(words) / len(words) <= 60
    outputs = [turn.output_tokens for session in trace.sessions for turn in session.turns]
    assert all(15 <= n <= 25 for n in outputs)

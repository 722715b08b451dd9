"""A trace of agents: sessions of turns, whatever it was made from."""

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: what the environment appends to the conversation, and how much the model answers."""

    appended_text: str
    output_tokens: int
    tool_time_s: float = 0.0
    """How long the tool ran before this turn's prompt was there."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One agent."""

    session_id: str
    context_text: str
    """What it starts with: system prompt, tools, task, files."""
    turns: list[Turn]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Some agents, and where they come from."""

    source: str
    sessions: list[Session]

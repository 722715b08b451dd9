"""Seeded agent sessions after DualPath's statistics, scaled to a small model.

The paper's coding agents take 157 turns with 32.7k tokens of context and 429 appended ones a turn, of which 98.7 % is a
hit. What carries over is the shape: a long context that is cached, short appends, short answers, many turns.
"""

import random
from collections.abc import Iterator

from sglang_dualpath.bench.trace import Session, Trace, Turn

_NOUNS = (
    *("buffer", "cache", "config", "decoder", "engine", "fetcher", "handler", "index", "layer", "loader"),
    *("parser", "planner", "queue", "reader", "router", "store", "writer"),
)
_VERBS = (
    *("append", "check", "close", "count", "drain", "flush", "load", "merge", "open", "parse", "plan", "read"),
    *("reset", "send", "split", "take", "wait", "write"),
)
_TOOLS = ("ls", "grep", "pytest", "cat")


def agent_trace(
    seed: int,
    n_sessions: int,
    n_turns: int,
    context_words: int,
    appended_words: int,
    output_tokens: int,
) -> Trace:
    """`n_sessions` agents of `n_turns` turns; lengths vary by a quarter around their means, tokens follow from the words."""
    source = random.Random(seed)
    sessions = [
        Session(
            session_id=f"agent-{index}",
            context_text=_context(random.Random(source.random()), context_words),
            turns=[
                Turn(
                    appended_text=_tool_output(source, _around(source, appended_words)),
                    output_tokens=_around(source, output_tokens),
                )
                for _ in range(n_turns)
            ],
        )
        for index in range(n_sessions)
    ]
    return Trace(source=f"seeded generator, seed {seed}", sessions=sessions)


def _around(source: random.Random, mean: int) -> int:
    return max(1, round(mean * source.uniform(0.75, 1.25)))


def _context(source: random.Random, n_words: int) -> str:
    """A task and the files it is about."""
    noun, verb = source.choice(_NOUNS), source.choice(_VERBS)
    opening = (
        "You are a careful software engineer with a shell. Work step by step, and say in one short sentence what you do "
        f"next.\nTask: the function {verb}_{noun} fails when the {source.choice(_NOUNS)} is empty. Find out why, mend it, "
        "and run the tests.\n"
    )
    return opening + _words(source, _listing(source), n_words - len(opening.split()))


def _tool_output(source: random.Random, n_words: int) -> str:
    """What a tool printed, as the next message of the conversation."""
    tool = source.choice(_TOOLS)
    lines = {"ls": _files, "grep": _matches, "pytest": _tests, "cat": _listing}[tool](source)
    return f"\nTool {tool} printed:\n" + _words(source, lines, n_words) + "\nNext I "


def _words(source: random.Random, lines: Iterator[str], n_words: int) -> str:
    taken: list[str] = []
    count = 0
    while count < n_words:
        line = next(lines)
        taken.append(line)
        count += len(line.split())
    return "\n".join(taken)


def _listing(source: random.Random) -> Iterator[str]:
    while True:
        noun, verb = source.choice(_NOUNS), source.choice(_VERBS)
        yield f"def {verb}_{noun}(self, {source.choice(_NOUNS)}: int) -> int:"
        yield f"    if {source.choice(_NOUNS)} is None or len(self.{noun}) == {source.randrange(100)}:"
        yield f"        raise ValueError('the {noun} cannot {source.choice(_VERBS)} now')"
        yield f"    self.{noun} = {source.choice(_VERBS)}_{source.choice(_NOUNS)}(self.{source.choice(_NOUNS)})"
        yield f"    return self.{noun}.{source.choice(_VERBS)}({source.randrange(1000)})"


def _files(source: random.Random) -> Iterator[str]:
    while True:
        name = f"{source.choice(_NOUNS)}_{source.choice(_NOUNS)}.py"
        yield f"-rw-r--r-- 1 agent agent {source.randrange(200, 90000)} Mar {source.randrange(1, 29)} src/{name}"


def _matches(source: random.Random) -> Iterator[str]:
    while True:
        noun = source.choice(_NOUNS)
        yield f"src/{noun}.py:{source.randrange(1, 900)}: self.{source.choice(_VERBS)}_{noun}({source.choice(_NOUNS)})"


def _tests(source: random.Random) -> Iterator[str]:
    while True:
        outcome = "PASSED" if source.random() < 0.9 else "FAILED"
        yield f"tests/test_{source.choice(_NOUNS)}.py::test_{source.choice(_VERBS)}_{source.choice(_NOUNS)} {outcome}"

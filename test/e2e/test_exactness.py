"""Greedy tokens through any path equal those of a single upstream server, and every turn hits all that came before."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from test.e2e.clients import generate, prompt
from test.e2e.servers import Stack, start_stack

BLOCK_TOKENS = 64
CHUNK_TOKENS = 256
"""Small, so that prompts of this file are prefilled in several chunks."""


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe", "tiny-mla"])
def stack(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One prefill and one decode engine, router, and a single upstream server of the same checkpoint."""
    directory = tmp_path_factory.mktemp(request.param)
    running = start_stack(
        checkpoints[request.param],
        directory,
        prefill_flags=("--chunked-prefill-size", str(CHUNK_TOKENS)),
        reference=True,
    )
    yield running
    running.stop()


def play(stack: Stack, seed: int, first: int, appended: int, n_new: int, side: str | None, *, flush: bool) -> None:
    """Five turns; each turn's prompt holds all that came before, each answer is compared, each hit counted."""
    reference = stack.extra[0].url
    ids = prompt(seed, first)
    with_kv = 0
    for turn in range(5):
        if flush:
            stack.flush()
        ours = generate(stack.url, ids, n_new, side)
        theirs = generate(reference, ids, n_new)
        assert ours.tokens == theirs.tokens, f"turn {turn}, {len(ids)} tokens, read on {side} side"
        # A hit ends before the last token, whose logits are needed.
        whole_blocks = min(with_kv, len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert ours.cached_tokens >= whole_blocks, f"turn {turn}"
        if flush:
            assert ours.cached_tokens == whole_blocks, f"turn {turn}"
        with_kv = len(ids) + n_new - 1
        ids = ids + ours.tokens + prompt(seed + 1000 + turn, appended)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_page_aligned_turns_after_flush(stack: Stack, side: str) -> None:
    """Every prompt is a whole number of blocks; nothing but the store remembers."""
    play(stack, seed=1 if side == "prefill" else 2, first=256, appended=64, n_new=64, side=side, flush=True)


@pytest.mark.parametrize(("side", "seed"), [("prefill", 3), ("decode", 4), ("split", 5)])
def test_unaligned_turns_after_flush(stack: Stack, side: str, seed: int) -> None:
    """Prompts and answers end inside blocks, and inside chunks."""
    play(stack, seed=seed, first=713, appended=41, n_new=70, side=side, flush=True)
    assert sum(state["counts"].get(f"planned_{side}_reads", 0) for state in stack.states()) >= 4


def test_concurrent_sessions_as_the_router_plans(stack: Stack) -> None:
    """Eight sessions at once, device caches left alone, sides as the router chooses; both sides get to read."""
    before = [state["counts"].get("read_blocks", 0) for state in stack.states()]
    with ThreadPoolExecutor(8) as pool:
        lengths = [65, 128, 200, 301, 420, 64, 777, 513]
        runs = [
            pool.submit(play, stack, 100 + i, first, 30 + 11 * i, 9 + 8 * i, None, flush=False)
            for i, first in enumerate(lengths)
        ]
        for run in runs:
            run.result()
    after = [state["counts"].get("read_blocks", 0) for state in stack.states()]
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_nothing_is_held_afterwards(stack: Stack) -> None:
    """Rooms, leases, queues: all back to zero, and nothing fell back."""
    stack.wait_quiet()
    assert [state["fallbacks"] for state in stack.states()] == [{}, {}]

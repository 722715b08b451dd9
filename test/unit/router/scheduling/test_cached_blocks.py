"""What an engine probably holds: leading runs, the latest used, within a bound."""

import random

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cached_blocks import CachedBlocks
from sglang_dualpath.router.scheduling.request import KEY_BLOCK_TOKENS

MOST_BYTES = 146 * 1000
"""The paper's metadata an instance."""


def chain(seed: int, length: int) -> tuple[int, ...]:
    """Keys of one prompt."""
    source = random.Random(seed)
    return tuple(source.getrandbits(64) for _ in range(length))


def test_an_empty_one_holds_nothing_and_costs_nothing() -> None:
    empty = CachedBlocks()
    assert empty.hit_tokens(chain(1, 5)) == 0
    assert empty.hit_tokens(()) == 0
    assert empty.n_bytes == 0


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_hit_is_the_leading_run_in_common(shared: int, rest: int, other: int) -> None:
    held = CachedBlocks()
    prefix = chain(1, shared)
    held.insert((*prefix, *chain(2, rest)))
    assert held.hit_tokens((*prefix, *chain(3, other))) == shared * KEY_BLOCK_TOKENS


def test_a_run_ends_where_a_block_is_missing() -> None:
    held = CachedBlocks()
    keys = chain(1, 10)
    held.insert(keys[:4])
    held.insert(keys[5:])
    assert held.hit_tokens(keys) == 4 * KEY_BLOCK_TOKENS


def test_what_was_used_last_stays_and_memory_is_bounded() -> None:
    held = CachedBlocks()
    kept = chain(0, 100)
    for seed in range(1, 400):
        held.insert(kept)
        held.insert(chain(seed, 100))
    assert held.hit_tokens(kept) == 100 * KEY_BLOCK_TOKENS
    assert held.hit_tokens(chain(1, 100)) < 100 * KEY_BLOCK_TOKENS
    assert held.n_blocks <= 8192
    assert 0 < held.n_bytes <= MOST_BYTES


@given(st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=30, unique=True))
def test_any_keys_are_held_once_inserted(keys: list[int]) -> None:
    held = CachedBlocks()
    held.insert(tuple(keys))
    held.insert(tuple(keys))
    assert held.hit_tokens(tuple(keys)) == len(keys) * KEY_BLOCK_TOKENS
    assert held.n_blocks == len(keys)

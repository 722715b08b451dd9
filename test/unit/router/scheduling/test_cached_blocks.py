"""What an engine probably holds: leading runs, the latest used, within a bound."""

import random

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cached_blocks import CachedBlocks
from sglang_dualpath.router.scheduling.marks import DENSE_BLOCKS, KEY_BLOCK_TOKENS, STRIDE_BLOCKS, Marks

MOST_BYTES = 146 * 1000
"""The paper's metadata an instance."""


def chain(seed: int, length: int) -> tuple[int, ...]:
    """Keys of one prompt."""
    source = random.Random(seed)
    return tuple(source.getrandbits(64) for _ in range(length))


class Held(CachedBlocks):
    """Takes keys."""

    def insert_keys(self, keys: tuple[int, ...]) -> None:
        """Hold a prompt."""
        self.insert(Marks.of(keys))

    def hit_blocks(self, keys: tuple[int, ...]) -> int:
        """Blocks of the leading run."""
        return self.hit_tokens(Marks.of(keys)) // KEY_BLOCK_TOKENS


def test_an_empty_one_holds_nothing_and_costs_nothing() -> None:
    empty = Held()
    assert empty.hit_blocks(chain(1, 5)) == 0
    assert empty.hit_blocks(()) == 0
    assert empty.n_bytes == 0


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_a_hit_is_the_leading_run_in_common(shared: int, rest: int, other: int) -> None:
    """Exact for the first blocks; further on to within a stride."""
    held = Held()
    prefix = chain(1, shared)
    held.insert_keys((*prefix, *chain(2, rest)))
    hit = held.hit_blocks((*prefix, *chain(3, other)))
    if shared <= DENSE_BLOCKS:
        assert hit == shared
    else:
        assert shared - STRIDE_BLOCKS < hit <= shared


def test_a_run_ends_where_a_block_is_missing() -> None:
    held = Held()
    keys = chain(1, 10)
    held.insert_keys(keys[:4])
    held.insert_keys(keys[5:])
    assert held.hit_blocks(keys) == 4


def test_what_was_used_last_stays_and_memory_is_bounded() -> None:
    held = Held()
    kept = chain(0, 100)
    for seed in range(1, 600):
        held.insert_keys(kept)
        held.insert_keys(chain(seed, 100))
    assert held.hit_blocks(kept) == 100
    assert held.hit_blocks(chain(1, 100)) < 100
    assert held.n_marks <= 8192
    assert 0 < held.n_bytes <= MOST_BYTES


@given(st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=DENSE_BLOCKS, unique=True))
def test_any_keys_are_held_once_inserted(keys: list[int]) -> None:
    held = Held()
    held.insert_keys(tuple(keys))
    held.insert_keys(tuple(keys))
    assert held.hit_blocks(tuple(keys)) == len(keys)
    assert held.n_marks == len(keys)


def test_keys_of_one_set_find_each_a_place() -> None:
    """Keys that differ only above the bits that choose the set."""
    held = Held()
    keys = tuple((i + 1) << 32 for i in range(8))
    held.insert_keys(keys)
    assert held.hit_blocks(keys) == 8

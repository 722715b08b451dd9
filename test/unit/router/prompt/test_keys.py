"""Keys of prompts: the same prefix gives the same keys, whatever comes after it and however it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.prompt.keys import CHARACTERS_PER_TOKEN, MAX_KEYS, keys_of_ids, keys_of_text, salt
from sglang_dualpath.router.scheduling.marks import KEY_BLOCK_TOKENS

SEED = salt(b"model")
ids = st.lists(st.integers(0, 200_000), max_size=5 * KEY_BLOCK_TOKENS)


def of_ids(values: list[int]) -> tuple[int, ...]:
    """The keys of token ids."""
    return keys_of_ids(json.dumps(values).encode(), SEED)[0]


@given(ids)
def test_there_is_a_key_for_each_full_block_and_every_id_is_counted(values: list[int]) -> None:
    keys, n_tokens = keys_of_ids(json.dumps(values).encode(), SEED)
    assert len(keys) == len(values) // KEY_BLOCK_TOKENS
    assert n_tokens == len(values)
    assert len(set(keys)) == len(keys)


@given(ids, ids)
def test_a_longer_prompt_keeps_the_keys_of_its_prefix(prefix: list[int], more: list[int]) -> None:
    whole = len(prefix) // KEY_BLOCK_TOKENS
    assert of_ids(prefix + more)[:whole] == of_ids(prefix)


@given(ids)
def test_white_space_does_not_count(values: list[int]) -> None:
    compact = json.dumps(values, separators=(",", ":")).encode()
    assert keys_of_ids(compact, SEED) == keys_of_ids(json.dumps(values, indent=1).encode(), SEED)


@given(st.lists(st.integers(0, 9), min_size=2 * KEY_BLOCK_TOKENS, max_size=2 * KEY_BLOCK_TOKENS), st.data())
def test_one_other_id_changes_its_blocks_key_and_all_after(values: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    changed = [*values[:at], values[at] + 10, *values[at + 1 :]]
    block = at // KEY_BLOCK_TOKENS
    before, after = of_ids(values), of_ids(changed)
    assert before[:block] == after[:block]
    assert all(a != b for a, b in zip(before[block:], after[block:], strict=True))


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_text_has_a_key_for_each_block_of_its_usual_length(blocks: int) -> None:
    text = b"x" * (blocks * KEY_BLOCK_TOKENS * CHARACTERS_PER_TOKEN + 5)
    assert len(keys_of_text(text, SEED)) == blocks


def test_other_salts_give_other_keys() -> None:
    values = list(range(KEY_BLOCK_TOKENS))
    array = json.dumps(values).encode()
    assert keys_of_ids(array, salt(b"a", b"b"))[0] != keys_of_ids(array, salt(b"ab", b""))[0]


def test_the_number_of_keys_is_bounded() -> None:
    array = b"[" + b"1," * (KEY_BLOCK_TOKENS * (MAX_KEYS + 2)) + b"1]"
    keys, n_tokens = keys_of_ids(array, SEED)
    assert len(keys) == MAX_KEYS
    assert n_tokens == KEY_BLOCK_TOKENS * (MAX_KEYS + 2) + 1

"""Keys: equal exactly where model, weights, type, shape, rank, tenant and every token so far are equal."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.key import KEY_BYTES, BlockKey, BlockKeyChain, BlockNamespace, weights_revision

BLOCK = 4
GEOMETRY = BlockGeometry(n_layers=2, token_bytes=8, block_tokens=BLOCK)
NAMESPACE = BlockNamespace("model", "rev", "bfloat16", GEOMETRY, "mha", 0, 2)

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=5 * BLOCK)
texts = st.text(max_size=6)


def keys_of(
    token_ids: list[int], extra_key: str | None = None, namespace: BlockNamespace = NAMESPACE
) -> list[BlockKey]:
    """The keys of one prompt."""
    chain = BlockKeyChain(namespace, extra_key)
    chain.extend(token_ids)
    return chain.keys


@given(tokens)
def test_every_full_block_has_a_key_and_the_tail_has_none(prompt: list[int]) -> None:
    keys = keys_of(prompt)
    assert len(keys) == len(prompt) // BLOCK
    assert all(len(key) == KEY_BYTES for key in keys)
    assert len(set(keys)) == len(keys)


@given(st.lists(tokens, max_size=5))
def test_how_the_tokens_arrive_does_not_matter(pieces: list[list[int]]) -> None:
    chain = BlockKeyChain(NAMESPACE)
    new = [key for piece in pieces for key in chain.extend(piece)]
    prompt = [token for piece in pieces for token in piece]
    assert chain.keys == keys_of(prompt)
    assert new == chain.keys
    assert chain.n_tokens == len(prompt)


@given(tokens)
def test_arrays_and_lists_of_any_integer_type_are_the_same_tokens(prompt: list[int]) -> None:
    for dtype in (np.int32, np.int64, np.uint32):
        chain = BlockKeyChain(NAMESPACE)
        chain.extend(np.array(prompt, dtype=dtype))
        assert chain.keys == keys_of(prompt)


@given(tokens, tokens)
def test_keys_agree_exactly_as_far_as_the_tokens_do(one: list[int], other: list[int]) -> None:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    keys, others = keys_of(one), keys_of(other)
    agree = [a == b for a, b in zip(keys, others, strict=False)]
    assert agree == [(index + 1) * BLOCK <= common for index in range(len(agree))]


@given(st.lists(st.integers(0, 9), min_size=3 * BLOCK, max_size=3 * BLOCK), st.integers(0, 3 * BLOCK - 1))
def test_one_other_token_changes_its_block_and_all_after_it(prompt: list[int], place: int) -> None:
    changed = [*prompt]
    changed[place] += 1
    differs = [a != b for a, b in zip(keys_of(prompt), keys_of(changed), strict=True)]
    assert differs == [index >= place // BLOCK for index in range(3)]


def test_a_block_of_the_same_tokens_elsewhere_in_a_prompt_has_another_key() -> None:
    first, second = keys_of([1, 2, 3, 4] * 2)
    assert first != second


@given(st.none() | texts, st.none() | texts)
def test_tenants_share_keys_only_when_they_are_the_same(one: str | None, other: str | None) -> None:
    prompt = list(range(2 * BLOCK))
    shared = set(keys_of(prompt, one)) & set(keys_of(prompt, other))
    assert bool(shared) == (one == other)


def test_a_tenants_name_may_be_text_that_no_encoding_has() -> None:
    assert keys_of([1, 2, 3, 4], "\ud800") != keys_of([1, 2, 3, 4], "\ud801")


@pytest.mark.parametrize(
    "other",
    [
        {"model": "other"},
        {"weights_revision": "other"},
        {"kv_dtype": "float32"},
        {"kind": "mla"},
        {"tp_rank": 1},
        {"tp_size": 4},
        {"geometry": replace(GEOMETRY, n_layers=3)},
        {"geometry": replace(GEOMETRY, token_bytes=16)},
        {"geometry": replace(GEOMETRY, block_tokens=BLOCK * 2)},
    ],
)
def test_namespaces_that_differ_in_any_field_share_nothing(other: dict[str, Any]) -> None:
    stranger = replace(NAMESPACE, **other)
    prompt = list(range(4 * BLOCK))
    assert stranger.digest != NAMESPACE.digest
    assert not set(keys_of(prompt)) & set(keys_of(prompt, namespace=stranger))


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_field_borders_count(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    first = BlockNamespace(one[0], one[1], one[2], GEOMETRY, "mha", 0, 1)
    second = BlockNamespace(other[0], other[1], other[2], GEOMETRY, "mha", 0, 1)
    assert (first.digest == second.digest) == (one == other)


def test_a_namespace_has_the_same_name_in_every_process() -> None:
    assert NAMESPACE.hex == NAMESPACE.digest.hex()
    assert len(NAMESPACE.digest) == KEY_BYTES
    assert replace(NAMESPACE).digest == NAMESPACE.digest


# ---- the revision of a checkpoint


def checkpoint(directory: Path, weights: bytes = b"w" * 10_000, config: dict[str, int] | None = None) -> str:
    """A checkpoint directory with one weight file."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config or {"layers": 2}))
    (directory / "model.safetensors").write_bytes(weights)
    return str(directory)


def test_a_copy_elsewhere_is_the_same_revision(tmp_path: Path) -> None:
    assert weights_revision(checkpoint(tmp_path / "a")) == weights_revision(checkpoint(tmp_path / "b"))


def test_other_files_of_a_checkpoint_do_not_count(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a")
    before = weights_revision(path)
    (tmp_path / "a" / "README.md").write_text("hello")
    assert weights_revision(path) == before


def test_another_config_is_another_revision(tmp_path: Path) -> None:
    one = weights_revision(checkpoint(tmp_path / "a"))
    assert one != weights_revision(checkpoint(tmp_path / "b", config={"layers": 3}))


@pytest.mark.parametrize("change", ["head", "tail", "size", "name", "one more"])
def test_other_weights_are_another_revision(tmp_path: Path, change: str) -> None:
    path = checkpoint(tmp_path / "a")
    before = weights_revision(path)
    file = tmp_path / "a" / "model.safetensors"
    content = bytearray(file.read_bytes())
    if change == "head":
        content[0] ^= 1
    elif change == "tail":
        content[-1] ^= 1
    elif change == "size":
        content += b"w"
    elif change == "name":
        file = file.rename(tmp_path / "a" / "other.safetensors")
    else:
        (tmp_path / "a" / "more.safetensors").write_bytes(b"")
    file.write_bytes(content)
    assert weights_revision(path) != before


def test_a_large_file_that_differs_everywhere_is_seen_without_reading_all_of_it(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "a", weights=bytes(3 * 2**20))
    other = checkpoint(tmp_path / "b", weights=bytes(8) + b"\1" * (3 * 2**20 - 8))
    assert weights_revision(one) != weights_revision(other)


def test_a_name_that_is_no_directory_stands_for_itself() -> None:
    assert weights_revision("org/model") == weights_revision("org/model")
    assert weights_revision("org/model") != weights_revision("org/other")

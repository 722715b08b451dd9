"""Keys of a prompt's leading blocks: equal keys mean equal prefixes.

A prompt given as token ids is keyed by its ids, in blocks of `KEY_BLOCK_TOKENS`; a text, which the router does not tokenize, by
its UTF-8 bytes in blocks of as many characters as such a block has on average. Each key hashes its block and the key before,
the first one a salt that keeps models and tenants apart.
"""

from collections.abc import Iterable

import numpy as np
import xxhash

from sglang_dualpath.router.scheduling.marks import KEY_BLOCK_TOKENS

CHARACTERS_PER_TOKEN = 4
"""For texts; only an estimate."""

MAX_KEYS = 2048
"""Keys of the first 262,144 tokens; a longer prompt is told apart by those."""

_BLOCK_BYTES = KEY_BLOCK_TOKENS * CHARACTERS_PER_TOKEN
_WHITE_SPACE = b" \t\r\n"
_COMMA = ord(",")


def salt(*parts: bytes) -> int:
    """What separates prompts of different models and tenants."""
    return xxhash.xxh3_64_intdigest(b"\0".join(parts))


def keys_of_text(text: bytes, seed: int) -> tuple[int, ...]:
    """Keys of a text's full blocks."""
    n_blocks = min(len(text) // _BLOCK_BYTES, MAX_KEYS)
    return _chain((text[i * _BLOCK_BYTES : (i + 1) * _BLOCK_BYTES] for i in range(n_blocks)), seed)


def keys_of_ids(array: bytes, seed: int) -> tuple[tuple[int, ...], int]:
    """Keys of the full blocks of a JSON array of token ids, and how many ids it holds; its white space does not count.

    Works on the JSON text itself: parsing 32,768 numbers would take longer than all else the router does.
    """
    digits = array.translate(None, _WHITE_SPACE).removeprefix(b"[").removesuffix(b"]")
    if not digits:
        return (), 0
    commas = np.flatnonzero(np.frombuffer(digits, dtype=np.uint8) == _COMMA)
    n_tokens = len(commas) + 1
    ends = [*commas[KEY_BLOCK_TOKENS - 1 :: KEY_BLOCK_TOKENS].tolist()]
    if n_tokens % KEY_BLOCK_TOKENS == 0:
        ends.append(len(digits))
    ends = ends[:MAX_KEYS]
    starts = [0, *(end + 1 for end in ends)]
    return _chain((digits[start:end] for start, end in zip(starts, ends, strict=False)), seed), n_tokens


def _chain(blocks: Iterable[bytes], seed: int) -> tuple[int, ...]:
    key = seed
    keys: list[int] = []
    for block in blocks:
        key = xxhash.xxh3_64_intdigest(block, key)
        keys.append(key)
    return tuple(keys)

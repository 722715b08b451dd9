"""Requests of a recorded trace: when they came, how long they are, and which blocks they share.

Two formats, told apart by their content, `.gz` or plain: Mooncake's JSON lines (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids` of 512-token blocks), and agent sessions as one JSON object (`requests` with `t`, `in`, `out`,
`hash_ids` of `block_size`-token blocks, local to the session).
"""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from sglang_dualpath.router.scheduling.marks import KEY_BLOCK_TOKENS
from sglang_dualpath.router.scheduling.request import Request

MOONCAKE_BLOCK_TOKENS = 512
MAX_TRACE_BYTES = 2**31


class TraceError(ValueError):
    """A file that is no trace; the message is for whoever named it."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _SessionRequest(msgspec.Struct):
    t: float
    tokens_in: int = msgspec.field(name="in", default=0)
    tokens_out: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = msgspec.field(default_factory=list)


class _SessionFile(msgspec.Struct):
    requests: list[_SessionRequest]
    block_size: int
    id: str = ""


def load_requests(path: Path) -> list[Request]:
    """All requests of a file, or of every file in a directory, by their arrival. Raises TraceError or OSError."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [
        request
        for file in files
        if file.name.endswith((".json", ".json.gz", ".jsonl", ".jsonl.gz"))
        for request in _load_file(file)
    ]
    if not found:
        raise TraceError(f"{path} holds no .json, .jsonl or .gz trace with requests")
    return sorted(found, key=lambda request: request.arrived_s)


def _load_file(path: Path) -> list[Request]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read(MAX_TRACE_BYTES + 1)
    if len(data) > MAX_TRACE_BYTES:
        raise TraceError(f"{path} holds more than {MAX_TRACE_BYTES} bytes")
    try:
        if b'"hash_ids"' in data[: data.find(b"\n") + 1]:
            return list(_mooncake(data, path.name))
        return list(_session(msgspec.json.decode(data, type=_SessionFile), path.name))
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path} is neither a Mooncake trace nor an agent session: {error}") from None


def _mooncake(data: bytes, name: str) -> Iterator[Request]:
    lines: list[_MooncakeLine] = msgspec.json.decode(
        b"[" + b",".join(data.strip().splitlines()) + b"]", type=list[_MooncakeLine]
    )
    for index, line in enumerate(lines):
        yield Request(
            request_id=f"{name}:{index}",
            prompt_tokens=max(1, line.input_length),
            arrived_s=line.timestamp / 1000,
            keys=keys_of_blocks("", line.hash_ids, MOONCAKE_BLOCK_TOKENS, line.input_length),
            output_tokens=line.output_length,
        )


def _session(session: _SessionFile, name: str) -> Iterator[Request]:
    for index, turn in enumerate(session.requests):
        yield Request(
            request_id=f"{name}:{index}",
            prompt_tokens=max(1, turn.tokens_in),
            arrived_s=turn.t,
            keys=keys_of_blocks(session.id or name, turn.hash_ids, session.block_size, turn.tokens_in),
            output_tokens=turn.tokens_out,
        )


def keys_of_blocks(scope: str, blocks: list[int], block_tokens: int, n_tokens: int) -> tuple[int, ...]:
    """Chained keys of the scheduler's block size, from a trace's block ids."""
    seed = xxhash.xxh3_64_intdigest(scope.encode())
    per_key = max(1, KEY_BLOCK_TOKENS // block_tokens)
    keys: list[int] = []
    for first in range(0, len(blocks), per_key):
        group = blocks[first : first + per_key]
        if len(group) < per_key:
            break
        for part in range(max(1, block_tokens // KEY_BLOCK_TOKENS)):
            seed = xxhash.xxh3_64_intdigest(b"%d" % part + b",".join(b"%d" % block for block in group), seed)
            keys.append(seed)
    return tuple(itertools.islice(keys, n_tokens // KEY_BLOCK_TOKENS))

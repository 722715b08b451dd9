"""Requests of recorded traces: both formats, compressed or not."""

import gzip
import json
from pathlib import Path

import pytest
from sglang_dualpath.router.dry_run.requests import TraceError, keys_of_blocks, load_requests

MOONCAKE = [
    {"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1024, "output_length": 7, "hash_ids": [0, 9]},
]
SESSION = {
    "id": "s1",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 300, "out": 9, "hash_ids": [1, 2, 3, 4, 5]},
        {"t": 4.5, "in": 420, "out": 3, "hash_ids": [1, 2, 3, 4, 6, 7, 8]},
    ],
}


def test_mooncakes_lines_are_requests_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, MOONCAKE)).encode()))
    early, late = load_requests(path)
    assert (early.arrived_s, early.prompt_tokens, early.output_tokens) == (0.5, 1024, 7)
    assert (late.arrived_s, late.prompt_tokens) == (2.0, 1100)
    # 512-token blocks are four key blocks each; the first block is shared.
    assert (len(early.keys), len(late.keys)) == (8, 8)
    assert early.keys[:4] == late.keys[:4]
    assert early.keys[4] != late.keys[4]


def test_a_session_is_its_turns_and_shares_what_they_share(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    path.write_text(json.dumps(SESSION))
    first, second = load_requests(path)
    assert (first.prompt_tokens, second.arrived_s, second.output_tokens) == (300, 4.5, 3)
    # Two blocks of 64 tokens make a key block of 128.
    assert (len(first.keys), len(second.keys)) == (2, 3)
    assert first.keys == second.keys[:2]


def test_block_ids_of_different_sessions_are_different_blocks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**SESSION, "id": name}))
    requests = load_requests(tmp_path)
    assert len(requests) == 4
    assert len({request.keys[0] for request in requests}) == 2


def test_keys_never_reach_beyond_the_prompt() -> None:
    assert len(keys_of_blocks("", [1, 2, 3], 512, 700)) == 5


@pytest.mark.parametrize("text", ["", "{}", '{"requests": 5}', "not json", '{"hash_ids": 1}\n'])
def test_what_is_no_trace_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"trace\.json"):
        load_requests(path)


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no"):
        load_requests(tmp_path)

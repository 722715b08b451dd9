"""The clients people have, unmodified, against the router; upstream without our flags, untouched by us."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from test.e2e.clients import generate, prompt
from test.e2e.servers import Stack, start_stack


@pytest.fixture(scope="module")
def stack(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One engine of each kind and a router, over a store in shared memory."""
    directory = tmp_path_factory.mktemp("service")
    running = start_stack(checkpoints["tiny-dense"], directory, store_url=f"memory://test-{os.getpid()}")
    yield running
    running.stop()


def test_upstreams_bench_serving(stack: Stack, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """`python -m sglang.bench_serving` completes all its requests."""
    command = [
        sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", stack.url,
        "--model", str(checkpoints["tiny-dense"]), "--dataset-name", "random-ids", "--num-prompts", "12",
        "--random-input-len", "200", "--random-output-len", "8", "--request-rate", "8",
        "--output-file", str(tmp_path / "out.jsonl"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads((tmp_path / "out.jsonl").read_text())["completed"] == 12


def test_memory_store_hits(stack: Stack) -> None:
    """memory:// holds blocks for both engines; its reads pass no emulated NIC."""
    ids = prompt(7, 300)
    first = generate(stack.url, ids, 4)
    stack.wait_quiet()
    stack.flush()
    for side in ("prefill", "decode"):
        again = generate(stack.url, ids, 4, side)
        assert (again.tokens, again.cached_tokens) == (first.tokens, 256)
        stack.flush()
    assert [state["nic_bytes"] for state in stack.states()] == [0, 0]


def test_chat_plain_and_streamed(stack: Stack) -> None:
    """The same greedy answer both ways, over both OpenAI endpoints; plans reach the engines on them, too."""
    message = {"role": "user", "content": "read the file and run the test " * 30}
    body = {"model": "any", "messages": [message], "max_tokens": 8, "temperature": 0}
    before = planned(stack)
    plain = requests.post(stack.url + "/v1/chat/completions", json=body, timeout=60).json()
    text = plain["choices"][0]["message"]["content"]
    streamed = requests.post(stack.url + "/v1/chat/completions", json=body | {"stream": True}, timeout=60)
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert "".join(pieces) == text
    completion = requests.post(
        stack.url + "/v1/completions", json={"model": "any", "prompt": "read " * 100, "max_tokens": 4}, timeout=60
    ).json()
    assert completion["usage"]["completion_tokens"] == 4
    assert requests.get(stack.url + "/v1/models", timeout=10).json()["data"]
    assert planned(stack) == before + 3


def planned(stack: Stack) -> int:
    """How many requests reached the decode engine with a plan."""
    return stack.states()[1]["counts"].get("requests_with_plan", 0)


def test_batches_and_logprobs(stack: Stack) -> None:
    """A batch is answered in order; logprobs of the prompt come from the prefill engine."""
    prompts = [prompt(11, 70), prompt(12, 130), prompt(13, 65)]
    body = {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}}
    answers = requests.post(stack.url + "/generate", json=body, timeout=60).json()
    assert [answer["output_ids"] for answer in answers] == [generate(stack.url, ids, 3).tokens for ids in prompts]
    body = body | {"input_ids": prompts[0], "return_logprob": True, "logprob_start_len": 0}
    info = requests.post(stack.url + "/generate", json=body, timeout=60).json()["meta_info"]
    assert len(info["input_token_logprobs"]) == len(prompts[0])


def test_bad_requests_get_upstreams_answer(stack: Stack) -> None:
    """An engine's own error body and status reach the client; a body that is no JSON ends at the router."""
    answer = requests.post(stack.url + "/generate", json={"sampling_params": {}}, timeout=60)
    assert answer.status_code == 400
    answer = requests.post(stack.url + "/generate", data=b"{", timeout=60)
    assert answer.status_code == 400
    assert "malformed" in answer.json()["error"]["message"]
    stack.wait_quiet()


RESOLVE = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
arguments = prepare_server_args(sys.argv[1:])
arguments.resolve_once()
print("server_args=" + repr(sorted(arguments.resolved_dict().items())))
"""


def test_without_our_flags_the_server_args_are_upstreams(checkpoints: dict[str, Path]) -> None:
    """The same resolved arguments whether upstream loads our plugin or not (the CPU platform serves both)."""
    lines = []
    for plugins in (None, "dualpath_cpu"):
        env = {name: value for name, value in os.environ.items() if name != "SGLANG_PLUGINS"}
        if plugins is not None:
            env["SGLANG_PLUGINS"] = plugins
        command = [sys.executable, "-c", RESOLVE, "--model-path", str(checkpoints["tiny-dense"]), "--random-seed", "1"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
        lines.append(next(line for line in done.stdout.splitlines() if line.startswith("server_args=")))
    assert lines[0] == lines[1]

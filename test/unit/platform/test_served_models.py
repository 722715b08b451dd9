"""Each kind of model on the CPU platform, against transformers' own forward: one engine a kind."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from sglang_dualpath.checkpoints.__main__ import make
from sglang_dualpath.demo.process import free_port
from sglang_dualpath.platform.entry import is_active

pytestmark = pytest.mark.skipif(not is_active(), reason="this machine is served by its accelerator")

CHUNK_TOKENS = 256
NEW_TOKENS = 12
GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}


def prompts() -> list[list[int]]:
    """Shorter than a page, exactly one, and over several chunks of prefill."""
    source = Random(1)
    return [[source.randrange(3, 900) for _ in range(length)] for length in (5, 64, 130, 700)]


def next_turns() -> list[list[int]]:
    return [[*prompt, 7, 8, 9] for prompt in prompts()]


@dataclass(frozen=True)
class Served:
    """What an engine answered: a batch, its next turns (prefixes cached), the longest prompt alone with logprobs."""

    reference: Any
    first: list[dict[str, Any]]
    second: list[dict[str, Any]]
    alone: dict[str, Any]

    def expected(self, prompt: list[int]) -> list[int]:
        with torch.no_grad():
            output = self.reference.generate(
                torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe", "tiny-mla"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    import sglang
    from transformers import AutoModelForCausalLM

    path: Path = tmp_path_factory.mktemp("served") / request.param
    make(request.param, path, "float32")
    engine = sglang.Engine(
        model_path=str(path),
        chunked_prefill_size=CHUNK_TOKENS,
        port=free_port(),
        nccl_port=free_port(),
        log_level="error",
    )
    try:
        first = engine.generate(input_ids=prompts(), sampling_params=GREEDY)
        second = engine.generate(input_ids=next_turns(), sampling_params=GREEDY)
        engine.flush_cache()
        alone = engine.generate(
            input_ids=prompts()[-1], sampling_params=GREEDY, return_logprob=True, logprob_start_len=0
        )
    finally:
        engine.shutdown()
    return Served(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval(), first, second, alone)


def test_greedy_tokens_are_those_of_transformers(served: Served) -> None:
    assert [answer["output_ids"] for answer in served.first] == [served.expected(prompt) for prompt in prompts()]


def test_cached_prefixes_are_used_and_change_no_token(served: Served) -> None:
    assert [answer["meta_info"]["cached_tokens"] for answer in served.second] == [0, 64, 128, 640]
    assert [answer["output_ids"] for answer in served.second] == [served.expected(prompt) for prompt in next_turns()]


def test_a_request_alone_is_answered_as_in_its_batch(served: Served) -> None:
    assert served.alone["output_ids"] == served.first[-1]["output_ids"]


def test_log_probabilities_are_those_of_transformers(served: Served) -> None:
    prompt = torch.tensor([prompts()[-1]])
    with torch.no_grad():
        expected = torch.log_softmax(served.reference(prompt).logits[0, :-1].double(), dim=-1)
    expected = expected.gather(1, prompt[0, 1:].unsqueeze(1)).squeeze(1)
    found = torch.tensor([entry[0] for entry in served.alone["meta_info"]["input_token_logprobs"][1:]])
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)

"""The small tokenizer of the random checkpoints."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.checkpoints.tokenizer import VOCABULARY_TOKENS, small_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return small_tokenizer()


def test_it_is_the_same_every_time(tokenizer: Any) -> None:
    assert small_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_its_ids_fit_the_models(tokenizer: Any) -> None:
    assert max(tokenizer.get_vocab().values()) < VOCABULARY_TOKENS


def test_the_special_tokens_are_where_the_models_configurations_say(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert tokenizer.eos_token_id == 2


def test_words_it_was_trained_on_are_few_tokens(tokenizer: Any) -> None:
    assert len(tokenizer.encode("prefill decode buffer")) < len("prefill decode buffer") / 3


def test_a_chat_opens_the_assistants_turn(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "read the file"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\nread the file<|im_end|>\n<|im_start|>assistant\n"
    )


@settings(max_examples=50)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = small_tokenizer_once()
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


_made: list[Any] = []


def small_tokenizer_once() -> Any:
    """Hypothesis takes no fixtures of its scope."""
    if not _made:
        _made.append(small_tokenizer())
    return _made[0]

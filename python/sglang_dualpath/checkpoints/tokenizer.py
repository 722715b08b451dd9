"""A small byte-level tokenizer with a chat template, trained on text made here."""

import random
from typing import Any

VOCABULARY_TOKENS = 1000
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = [
    "agent",
    "block",
    "buffer",
    "cache",
    "chunk",
    "decode",
    "engine",
    "fetch",
    "file",
    "layer",
    "load",
    "memory",
    "model",
    "page",
    "path",
    "plan",
    "prefill",
    "prompt",
    "queue",
    "read",
    "request",
    "route",
    "schedule",
    "side",
    "store",
    "stream",
    "test",
    "token",
    "tool",
    "turn",
    "write",
    "the",
    "a",
    "of",
    "to",
    "in",
    "and",
    "is",
    "for",
    "with",
    "on",
]


def small_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` of VOCABULARY_TOKENS tokens; the same on every machine."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    source = random.Random(0)
    text = [" ".join(source.choices(_WORDS, k=12)) for _ in range(400)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = _CHAT_TEMPLATE
    return fast

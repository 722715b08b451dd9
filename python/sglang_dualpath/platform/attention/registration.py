"""The backend's name, and how upstream comes to know it."""

from typing import Any

BACKEND = "dualpath_cpu"
"""The value of `--attention-backend`."""

DEFAULT_BACKEND = BACKEND
"""What a server takes unless told otherwise."""


def offer() -> None:
    """Let the command line take the name (upstream `arg_groups.choices`)."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    if BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND])


def register() -> None:
    """Let model runners build it (upstream `attention_registry`), and DeepSeek models absorb with it."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry

    register_attention_backend(BACKEND)(_build)
    AttentionBackendRegistry.register(BACKEND, always_absorb)


def _build(model_runner: Any) -> Any:
    from sglang_dualpath.platform.attention.backend import PlainCpuAttention

    return PlainCpuAttention(model_runner)


def always_absorb(attention: Any, forward_batch: Any) -> Any:
    """Latent attention in its absorbed form, whether there is a cached prefix or not.

    One form for all lengths: a token comes out the same whether its prefix was computed or loaded.
    """
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    return AttnForwardMethod.MLA

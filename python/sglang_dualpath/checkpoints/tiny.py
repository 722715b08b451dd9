"""Random models of a few layers: dense (Qwen2), mixture of experts (Qwen3-MoE) and latent attention (DeepSeek-V3)."""

import json
from pathlib import Path
from typing import Any

from sglang_dualpath.checkpoints.tokenizer import small_tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 32768,
    # Near unit gain: with the usual 0.02 greedy output hardly depends on the cached KV, and tests would not notice.
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}

_YARN: dict[str, Any] = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
}


def dense(directory: Path, dtype: str) -> None:
    """A Qwen2 with grouped-query attention."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(num_key_value_heads=2, tie_word_embeddings=False, **_COMMON)
    _save(Qwen2ForCausalLM, config, directory, dtype)


def moe(directory: Path, dtype: str) -> None:
    """A Qwen3-MoE, 2 of 8 experts a token."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        **_COMMON,
    )
    _save(Qwen3MoeForCausalLM, config, directory, dtype)


def mla(directory: Path, dtype: str) -> None:
    """A DeepSeek-V3: latent attention, a dense first layer, grouped experts with a shared one."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        num_key_value_heads=4,
        moe_intermediate_size=64,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        kv_lora_rank=64,
        q_lora_rank=64,
        qk_rope_head_dim=32,
        qk_nope_head_dim=32,
        v_head_dim=32,
        first_k_dense_replace=1,
        rope_scaling=_YARN | {"type": "yarn"},
        **_COMMON,
    )
    _save(
        DeepseekV3ForCausalLM,
        config,
        directory,
        dtype,
        # Fields that SGLang's model reads and transformers' configuration does not write.
        rope_scaling=_YARN | {"type": "yarn"},
        rope_parameters=_YARN | {"rope_theta": 10000.0},
        moe_layer_freq=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        ep_size=1,
        num_nextn_predict_layers=0,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )


def _save(model_class: Any, config: Any, directory: Path, dtype: str, **extra: Any) -> None:
    import torch

    torch.manual_seed(0)
    model = model_class(config).to(getattr(torch, dtype))
    model.save_pretrained(directory)
    small_tokenizer().save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | extra, indent=1))

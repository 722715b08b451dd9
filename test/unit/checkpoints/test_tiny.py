"""The random checkpoints: loadable, of their kind, and the same on every machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_dualpath.checkpoints.__main__ import make
from transformers import AutoModelForCausalLM, AutoTokenizer

NAMES = ("tiny-dense", "tiny-moe", "tiny-mla")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directories = {name: tmp_path_factory.mktemp("checkpoints") / name for name in NAMES}
    for name, directory in directories.items():
        assert make(name, directory, "float32")
    return directories


def config(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return loaded


def test_each_is_of_its_kind(made: dict[str, Path]) -> None:
    assert {name: config(path)["architectures"] for name, path in made.items()} == {
        "tiny-dense": ["Qwen2ForCausalLM"],
        "tiny-moe": ["Qwen3MoeForCausalLM"],
        "tiny-mla": ["DeepseekV3ForCausalLM"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_with_all_its_weights(made: dict[str, Path], name: str) -> None:
    model, report = AutoModelForCausalLM.from_pretrained(made[name], output_loading_info=True)
    assert not report["missing_keys"]
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight.shape[0] >= len(AutoTokenizer.from_pretrained(made[name]))


def test_the_latent_one_has_what_sglangs_model_reads(made: dict[str, Path]) -> None:
    latent = config(made["tiny-mla"])
    assert latent["topk_method"] == "noaux_tc"
    assert latent["scoring_func"] == "sigmoid"
    assert latent["first_k_dense_replace"] == 1
    assert latent["moe_layer_freq"] == 1
    assert latent["rope_scaling"]["rope_type"] == "yarn"


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_is_fixed(made: dict[str, Path], name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "again", "float32")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (made[name] / "model.safetensors").read_bytes()


def test_weights_come_in_the_type_asked_for(tmp_path: Path) -> None:
    make("tiny-dense", tmp_path / "model", "bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_the_next_token_depends_on_a_distant_one(made: dict[str, Path], name: str) -> None:
    """What makes the exactness tests worth something: another KV block, another token."""
    model = AutoModelForCausalLM.from_pretrained(made[name]).eval()
    prompts = torch.randint(3, 900, (8, 200), generator=torch.Generator().manual_seed(0))
    changed = prompts.clone()
    changed[:, :64] = (changed[:, :64] + 7) % 900
    with torch.no_grad():
        before, after = (model(tokens).logits[:, -1].argmax(-1) for tokens in (prompts, changed))
    assert int((before != after).sum()) >= 4

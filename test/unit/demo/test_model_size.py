"""KV bytes of a token, from the checkpoint alone."""

import json
from pathlib import Path

import pytest
from sglang_dualpath.demo.model_size import kv_token_bytes
from sglang_dualpath.platform import defaults


@pytest.mark.parametrize(("has_bfloat16", "item_bytes"), [(True, 2), (False, 4)])
def test_it_follows_the_dtype_this_cpu_computes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, item_bytes: int
) -> None:
    monkeypatch.setattr(defaults, "computes_bfloat16", lambda: has_bfloat16)
    config = {"dtype": "bfloat16", "num_hidden_layers": 30, "num_key_value_heads": 3, "num_attention_heads": 9}
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 576}))
    assert kv_token_bytes(tmp_path) == 2 * 30 * 3 * 64 * item_bytes

"""Shared by all end-to-end tests: checkpoints, made once."""

from pathlib import Path

import pytest
from sglang_dualpath.checkpoints.__main__ import make


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three random checkpoints, in float32: equal tokens then mean equal KV, not luck with ties."""
    directory = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for name in ("tiny-dense", "tiny-moe", "tiny-mla"):
        found[name] = directory / name
        make(name, found[name], "float32")
    return found

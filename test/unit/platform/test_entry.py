"""When the CPU platform comes forward."""

import sys

import pytest
import torch
from sglang_dualpath.platform import entry


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(entry.VARIABLE, raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_an_accelerator() -> None:
    assert entry.activate() == "sglang_dualpath.platform.cpu.PlainCpuPlatform"


def test_not_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert entry.activate() is None


def test_beside_an_accelerator_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(entry.VARIABLE, "cpu")
    assert entry.activate() == entry.PLATFORM_CLASS


def test_not_when_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(entry.VARIABLE, "off")
    assert entry.activate() is None


def test_upstreams_own_cpu_engine_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert entry.activate() is None


def test_a_wish_that_means_nothing_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(entry.VARIABLE, "gpu")
    with pytest.raises(SystemExit, match="SGLANG_DUALPATH_PLATFORM='gpu' means nothing; use cpu, off or auto"):
        entry.activate()


def test_an_import_error_of_ours_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang_dualpath.platform.cpu", None)
    with pytest.raises(SystemExit, match="the CPU platform cannot be imported"):
        entry.activate()

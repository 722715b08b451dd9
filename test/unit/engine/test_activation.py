"""Whether DualPath is on: told once, and known to every child process through its environment."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from sglang_dualpath.config import DualPathConfig
from sglang_dualpath.engine.activation import VARIABLE, activate, active_config, is_active

CONFIG = DualPathConfig(
    path="dual",
    store_url="file:///var/lib/kv with a blank",
    buffer_bytes=2**40 + 1,
    transport="mooncake",
    transport_protocol="auto",
    router_control=None,
    store_read_bandwidth_bytes_per_s=3e7,
    node_id="näme",
)


@pytest.fixture(autouse=True)
def inactive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which nobody has given `--kv-path`."""
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    os.environ.pop(VARIABLE, None)


def test_at_first_it_is_off() -> None:
    assert not is_active()
    with pytest.raises(RuntimeError, match="not active"):
        active_config()


def test_the_settings_come_back_as_they_were_given() -> None:
    activate(CONFIG)
    assert is_active()
    assert active_config() == CONFIG


def test_it_can_be_turned_off_again() -> None:
    activate(CONFIG)
    activate(None)
    activate(None)
    assert not is_active()


def test_a_child_process_has_the_settings() -> None:
    activate(CONFIG)
    program = "from sglang_dualpath.engine.activation import active_config; print(repr(active_config()))"
    told = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, encoding="utf-8", timeout=120, check=True
    )
    assert told.stdout.strip() == repr(CONFIG)

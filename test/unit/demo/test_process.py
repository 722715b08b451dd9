"""Child servers: waited for, stopped with all they started, their log shown when they fail."""

import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from sglang_dualpath.demo import process
from sglang_dualpath.demo.process import ServerFailed, ServerProcess, free_port

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def start(tmp_path: Path, code: str) -> ServerProcess:
    port = free_port()
    return ServerProcess("test", [sys.executable, "-c", code, str(port)], f"http://127.0.0.1:{port}", tmp_path / "log")


def test_a_server_is_waited_for_and_stopped_with_its_children(tmp_path: Path) -> None:
    server = start(tmp_path, SERVER)
    server.wait_healthy("/")
    child = int(server.log_text().split()[1])
    assert psutil.pid_exists(child)
    server.stop()
    assert not server.is_running
    deadline = time.monotonic() + 10
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(child)


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_ends_early_shows_its_last_words(tmp_path: Path) -> None:
    server = start(tmp_path, "import sys; print('out of luck'); sys.exit(3)")
    with pytest.raises(ServerFailed, match="exit code 3") as failure:
        server.wait_healthy()
    assert "out of luck" in str(failure.value)
    server.stop()


def test_ports_are_handed_out_once_and_out_of_reach_of_outgoing_connections() -> None:
    """A server binds its port a minute after it was chosen; until then nothing may get it by chance."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(20_000 <= port < ephemeral for port in ports)


def test_a_port_in_use_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ports, two are taken: the third comes, then a sentence."""
    first = free_port()
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", first))
        monkeypatch.setattr(process, "FIRST_PORT", first)
        second, third = first + 1, first + 2
        other.bind(("127.0.0.1", second))
        monkeypatch.setattr(process, "_handed_out", set())
        monkeypatch.setattr(process, "_first_ephemeral_port", lambda: third + 1)
        assert free_port() == third
        with pytest.raises(ServerFailed, match="is free"):
            free_port()

"""Servers as child processes: in process groups of their own, watched while they start, always stopped."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

START_TIMEOUT_S = 420.0
"""Generous: on two slow cores several servers import a lot at once."""

STOP_TIMEOUT_S = 20.0
POLL_S = 0.3
LOG_LINES = 40

FIRST_PORT = 20_000
"""Above what servers use by default; Mooncake takes its own below."""

_handed_out: set[int] = set()


class ServerFailed(RuntimeError):
    """A server did not come up; the message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port that is free now, and that no outgoing connection can take before a slow server gets to bind it.

    Ports below the kernel's ephemeral range, each handed out once a process. Raises ServerFailed when none is left.
    """
    candidates = [port for port in range(FIRST_PORT, _first_ephemeral_port()) if port not in _handed_out]
    random.shuffle(candidates)
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise ServerFailed(f"no TCP port from {FIRST_PORT} to {_first_ephemeral_port() - 1} is free")


def _first_ephemeral_port() -> int:
    """Where the kernel begins to take ports for outgoing connections and for binds to port 0."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


class ServerProcess:
    """One server and its children; its output goes to `log`."""

    def __init__(self, name: str, command: list[str], url: str, log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.url = url
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    @property
    def is_running(self) -> bool:
        """Whether the server itself has not ended."""
        return self.process.poll() is None

    def wait_healthy(self, path: str = "/health", on_wait: Callable[[], None] = lambda: None) -> None:
        """Return once it answers 200. Raises ServerFailed when it ends, or does not answer in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.is_running:
                raise ServerFailed(f"{self.name} ended with exit code {self.process.returncode}:\n{self.log_end()}")
            if _answers(self.url + path):
                return
            on_wait()
            time.sleep(POLL_S)
        raise ServerFailed(f"{self.name} did not answer within {START_TIMEOUT_S:.0f} s:\n{self.log_end()}")

    def log_text(self) -> str:
        """All it has printed so far."""
        return self.log.read_text(errors="replace")

    def log_end(self) -> str:
        """The last lines it has printed."""
        return "\n".join(self.log_text().splitlines()[-LOG_LINES:])

    def kill(self) -> None:
        """End it and its children at once, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self) -> None:
        """End it as a user would; whatever is left of its group after a while is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=STOP_TIMEOUT_S)
        self.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

"""Servers as child processes: in process groups of their own, watched while they start, always stopped."""

import contextlib
import os
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


class ServerFailed(RuntimeError):
    """A server did not come up; the message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

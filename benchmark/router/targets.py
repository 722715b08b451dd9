"""What is measured: stub engines alone, and each router in front of the same ones."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from sglang_dualpath.demo.process import free_port

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Engines:
    """URLs of the stub engines."""

    prefill: tuple[str, ...]
    decode: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load is sent; `process` is None for the engines themselves."""

    name: str
    url: str
    process: psutil.Process | None

    def cpu_s(self) -> float:
        """CPU time its processes have used."""
        if self.process is None:
            return 0.0
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextlib.contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[psutil.Process]:
    """A server until the block ends; answers its health check when it begins. Raises RuntimeError."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_healthy(process, url, log)
        yield psutil.Process(process.pid)
    finally:
        tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for left in (*tree, *([psutil.Process(process.pid)] if process.poll() is None else [])):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()


def _wait_healthy(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        if _answers(url):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not start; see {log}:\n{log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def stub_engines(log: Path, quick_ack: bool) -> Iterator[Engines]:
    """Two prefill and two decode engines, in two processes: one a role."""
    ports = [free_port() for _ in range(4)]
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
    command = [sys.executable, "-m", "benchmark.router.stub", *(["--quick-ack"] if quick_ack else []), "--ports"]
    with contextlib.ExitStack() as stack:
        for role, half in (("prefill", slice(0, 2)), ("decode", slice(2, 4))):
            words = [str(port) for port in ports[half]]
            stack.enter_context(running([*command, *words], urls[half][0], log.with_suffix(f".{role}.log")))
        yield Engines(urls[:2], urls[2:])


def router_command(name: str, engines: Engines, port: int, others: Path | None) -> list[str]:
    """The command line of a router by its name here."""
    words = [word for url in engines.prefill for word in ("--prefill", url, "8998")]
    words += [word for url in engines.decode for word in ("--decode", url)]
    words += ["--pd-disaggregation", "--host", "127.0.0.1", "--port", str(port)]
    if name.startswith("dualpath"):
        fronts = name.partition("x")[2] or "1"
        extra = ["--control-port", str(free_port()), "--fronts", fronts, "--log-level", "warning"]
        return [sys.executable, "-m", "sglang_dualpath.launch_router", *words, *extra]
    assert others is not None
    quiet = ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "warn"]
    if name == "smg":
        return [str(others / "bin/smg"), "launch", *words, *quiet]
    mini = ["--mini-lb"] if name == "mini-lb" else []
    return [str(others / "bin/python"), "-m", "sglang_router.launch_router", *words, *quiet, *mini]

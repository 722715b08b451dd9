"""Real servers for end-to-end tests: started in process groups of their own, watched, always stopped."""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from sglang_dualpath.demo.process import ServerProcess, free_port


def engine_command(model: Path, port: int, *flags: str) -> list[str]:
    """The command a user types for an engine; in float32, so that equal tokens mean equal KV and not luck with ties."""
    flags = ("--dtype", "float32", *flags)
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port), *flags]


@dataclass
class Stack:
    """Prefill engine, decode engines and router over one store."""

    prefill: ServerProcess
    decodes: list[ServerProcess]
    router: ServerProcess
    store: Path
    extra: list[ServerProcess] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where clients go."""
        return self.router.url

    @property
    def engines(self) -> list[ServerProcess]:
        """The engines that still run."""
        return [engine for engine in (self.prefill, *self.decodes) if engine.process.poll() is None]

    def states(self) -> list[dict[str, Any]]:
        """Each running engine's DualPath state."""
        return [state_of(engine) for engine in self.engines]

    def flush(self) -> None:
        """Empty every device cache; the store stays."""
        for engine in self.engines:
            answer = requests.post(engine.url + "/flush_cache", params={"timeout": 30}, timeout=60)
            assert answer.status_code == 200, answer.text

    def flush_if_idle(self) -> None:
        """Empty device caches of engines that are idle; a busy one refuses, and keeps its cache."""
        for engine in self.engines:
            requests.post(engine.url + "/flush_cache", timeout=60)

    def wait_quiet(self, timeout_s: float = 60) -> None:
        """Return once no engine holds anything for any request; raises AssertionError with what is left otherwise."""
        deadline = time.monotonic() + timeout_s
        left: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            left = [held for held in map(held_by, self.states()) if any(held.values())]
            if not left:
                return
            time.sleep(0.2)
        raise AssertionError(f"still held after {timeout_s} s: {left}")

    def stop(self) -> None:
        """Stop everything."""
        for server in (self.router, self.prefill, *self.decodes, *self.extra):
            server.stop()


def state_of(engine: ServerProcess) -> dict[str, Any]:
    """An engine's `internal_states[0].dualpath`."""
    return requests.get(engine.url + "/server_info", timeout=30).json()["internal_states"][0]["dualpath"]


def held_by(state: dict[str, Any]) -> dict[str, int]:
    """What an engine holds for requests: all 0 when it is quiet."""
    return {
        "leases": state["buffer"]["leases"],
        "blocks": state["buffer"]["used_blocks"],
        "rooms": state["rooms"],
        "read_queue_tokens": state["read_queue_tokens"],
        "node_read_queue_tokens": state["node_read_queue_tokens"],
        "pending_writes": state["pending_writes"],
    }


def start_stack(
    model: Path,
    directory: Path,
    *,
    n_decode: int = 1,
    prefill_flags: tuple[str, ...] = (),
    decode_flags: tuple[str, ...] = (),
    store_url: str | None = None,
    reference: bool = False,
) -> Stack:
    """Start everything at once and wait; with `reference`, also a single upstream server, in `extra`."""
    store = directory / "store"
    control = free_port()
    common = (
        "--kv-path", "dual",
        "--kv-store", store_url or f"file://{store}",
        "--kv-buffer-size", "64M",
        "--router-control", f"tcp://127.0.0.1:{control}",
    )  # fmt: skip
    bootstrap = free_port()
    prefill = _engine(
        "prefill", model, directory, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(bootstrap),
        "--kv-node-id", f"{directory.name}-prefill", *common, *prefill_flags,
    )  # fmt: skip
    decodes = [
        _engine(
            f"decode{i}", model, directory, "--disaggregation-mode", "decode",
            "--kv-node-id", f"{directory.name}-decode{i}", *common, *decode_flags,
        )
        for i in range(n_decode)
    ]  # fmt: skip
    extra = [_engine("reference", model, directory)] if reference else []
    port = free_port()
    command = [
        sys.executable, "-m", "sglang_dualpath.launch_router", "--pd-disaggregation",
        "--prefill", prefill.url, str(bootstrap),
        *(word for decode in decodes for word in ("--decode", decode.url)),
        "--port", str(port), "--control-host", "127.0.0.1", "--control-port", str(control),
        "--request-timeout-secs", "120", "--health-check-interval-secs", "1",
    ]  # fmt: skip
    router = ServerProcess("router", command, f"http://127.0.0.1:{port}", directory / "router.log")
    stack = Stack(prefill, decodes, router, store, extra)
    try:
        for server in (prefill, *decodes, *extra, router):
            server.wait_healthy()
        _wait_reported(stack)
    except BaseException:
        stack.stop()
        raise
    return stack


def _engine(name: str, model: Path, directory: Path, *flags: str) -> ServerProcess:
    port = free_port()
    return ServerProcess(
        name, engine_command(model, port, *flags), f"http://127.0.0.1:{port}", directory / f"{name}.log"
    )


def _wait_reported(stack: Stack) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        workers = requests.get(stack.url + "/workers", timeout=5).json()["workers"]
        if all(worker["reports"] for worker in workers):
            return
        time.sleep(0.2)
    raise RuntimeError(f"engines do not report to the router: {json.dumps(workers)}")

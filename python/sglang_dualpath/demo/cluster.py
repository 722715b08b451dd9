"""One prefill engine, one decode engine and a router on this machine, as a user would start them."""

import contextlib
import functools
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_dualpath.bench.metrics import SideReads
from sglang_dualpath.demo.process import ServerProcess, free_port


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is started. `bandwidth_bytes_per_s` is the emulated storage NIC of each of the two nodes."""

    model: Path
    kv_path: str
    store: Path
    logs: Path
    bandwidth_bytes_per_s: int
    buffer: str = "1G"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running servers."""

    url: str
    engines: tuple[ServerProcess, ...]

    def flush(self) -> None:
        """Empty the device caches: what is read afterwards comes from the store."""
        for engine in self.engines:
            request = urllib.request.Request(engine.url + "/flush_cache?timeout=30", method="POST")
            urllib.request.urlopen(request, timeout=60).close()

    def reads(self) -> list[SideReads]:
        """Bytes each node's NIC has read since the start."""
        return [SideReads(node=s["node_id"], bytes_read=s["nic_bytes"]) for s in self._states()]

    def fallbacks(self) -> dict[str, int]:
        """Fallbacks of all engines by reason."""
        total: dict[str, int] = {}
        for state in self._states():
            for reason, count in state["fallbacks"].items():
                total[reason] = total.get(reason, 0) + count
        return total

    def pending_writes(self) -> int:
        """Blocks on their way into the store."""
        return sum(state["pending_writes"] for state in self._states())

    def _states(self) -> list[dict[str, Any]]:
        states = []
        for engine in self.engines:
            with urllib.request.urlopen(engine.url + "/server_info", timeout=60) as answer:
                states.append(json.load(answer)["internal_states"][0]["dualpath"])
        return states


@contextlib.contextmanager
def running(settings: ClusterSettings, on_wait: Callable[[str], None]) -> Iterator[Cluster]:
    """Start, wait, and stop at the end whatever happens. Raises ServerFailed with the log of a server that fails."""
    control, bootstrap, port = free_port(), free_port(), free_port()
    started: list[ServerProcess] = []
    try:
        common = (
            "--kv-path", settings.kv_path,
            "--kv-store", f"file://{settings.store}",
            "--kv-buffer-size", settings.buffer,
            "--kv-store-read-bandwidth", str(settings.bandwidth_bytes_per_s),
            "--router-control", f"tcp://127.0.0.1:{control}",
        )  # fmt: skip
        prefill = _engine(
            settings, "prefill", *common,
            "--kv-node-id", f"demo-prefill-{port}", "--disaggregation-bootstrap-port", str(bootstrap),
        )  # fmt: skip
        started.append(prefill)
        decode = _engine(settings, "decode", *common, "--kv-node-id", f"demo-decode-{port}")
        started.append(decode)
        command = [
            sys.executable, "-m", "sglang_dualpath.launch_router", "--pd-disaggregation", "--port", str(port),
            "--prefill", prefill.url, str(bootstrap), "--decode", decode.url,
            "--control-host", "127.0.0.1", "--control-port", str(control),
        ]  # fmt: skip
        router = ServerProcess("router", command, f"http://127.0.0.1:{port}", settings.logs / "router.log")
        started.append(router)
        for server in started:
            server.wait_healthy(on_wait=functools.partial(on_wait, server.name))
        yield Cluster(router.url, (prefill, decode))
    finally:
        for server in reversed(started):
            server.stop()


def _engine(settings: ClusterSettings, role: str, *flags: str) -> ServerProcess:
    port = free_port()
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(settings.model), "--port", str(port),
        "--disaggregation-mode", role, *flags,
    ]  # fmt: skip
    return ServerProcess(role, command, f"http://127.0.0.1:{port}", settings.logs / f"{role}.log")

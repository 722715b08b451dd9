"""The demo's third column: unmodified upstream PD + HiCache with file storage, behind sglang_router.

Its reads of the file storage go through the same emulated NIC as ours. Its caches in device and host memory hold the few
contexts of the demo, so it reads each from the storage once; agents whose contexts outgrow memory, the case this
distribution is for, read them every turn, as our two columns do.
"""

import contextlib
import functools
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from sglang_dualpath.bench.metrics import SideReads
from sglang_dualpath.demo.process import ServerProcess, free_port
from sglang_dualpath.platform.hicache.pacing import VARIABLE as NIC_VARIABLE
from sglang_dualpath.store.nic import NodeStorageNic

HOST_CACHE_GB = "1"
"""Host memory that upstream's HiCache keeps KV in."""


class UpstreamCluster:
    """Running upstream servers; see `demo.cluster.Cluster`."""

    def __init__(self, url: str, prefill: ServerProcess, nic: NodeStorageNic) -> None:
        self.url = url
        self._prefill = prefill
        self._nic = nic

    def flush(self) -> None:
        """Empty the device and host caches of the prefill engine."""
        request = urllib.request.Request(self._prefill.url + "/flush_cache?timeout=30", method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def reads(self) -> list[SideReads]:
        """The prefill node's reads; the decode node reads nothing."""
        return [
            SideReads(node=self._nic.node_id, bytes_read=self._nic.node_bytes_read()),
            SideReads(node="decode", bytes_read=0),
        ]

    def fallbacks(self) -> dict[str, int]:
        """Upstream counts none."""
        return {}

    def pending_writes(self) -> int:
        """Unknown; upstream writes through as it computes."""
        return 0


@contextlib.contextmanager
def running_upstream(
    model: Path, store: Path, logs: Path, bandwidth_bytes_per_s: int, cache_tokens: int, on_wait: Callable[[str], None]
) -> Iterator[UpstreamCluster]:
    """Start, wait, and stop at the end whatever happens. `cache_tokens` bounds the prefill engine's device cache."""
    port, bootstrap, prefill_port, decode_port = free_port(), free_port(), free_port(), free_port()
    store.mkdir(parents=True)
    node_id = f"demo-upstream-{port}"
    env = {
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(store),
        NIC_VARIABLE: f"{node_id}:{bandwidth_bytes_per_s}",
    }
    launch = (sys.executable, "-m", "sglang.launch_server", "--model-path", str(model))
    started: list[ServerProcess] = []
    nic = NodeStorageNic(node_id, float(bandwidth_bytes_per_s))
    try:
        prefill = ServerProcess(
            "prefill",
            [
                *launch, "--port", str(prefill_port), "--disaggregation-mode", "prefill",
                "--disaggregation-bootstrap-port", str(bootstrap), "--max-total-tokens", str(cache_tokens),
                "--enable-hierarchical-cache", "--hicache-size", HOST_CACHE_GB, "--hicache-write-policy", "write_through",
                "--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", "wait_complete",
            ],
            f"http://127.0.0.1:{prefill_port}",
            logs / "prefill.log",
            env,
        )  # fmt: skip
        started.append(prefill)
        started.append(
            ServerProcess(
                "decode",
                [*launch, "--port", str(decode_port), "--disaggregation-mode", "decode"],
                f"http://127.0.0.1:{decode_port}",
                logs / "decode.log",
            )
        )
        router = ServerProcess(
            "router",
            [
                sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--mini-lb",
                "--prefill", prefill.url, str(bootstrap), "--decode", f"http://127.0.0.1:{decode_port}",
                "--port", str(port),
            ],
            f"http://127.0.0.1:{port}",
            logs / "router.log",
        )  # fmt: skip
        started.append(router)
        for server in started:
            server.wait_healthy(on_wait=functools.partial(on_wait, server.name))
        yield UpstreamCluster(router.url, prefill, nic)
    finally:
        for server in reversed(started):
            server.stop()
        nic.close()

"""The Mooncake TransferEngine as transport: TCP anywhere, RDMA and GPU memory where there is hardware."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_dualpath.config import FlagError
from sglang_dualpath.transport.transport import TransferError

RDMA_DEVICES = Path("/sys/class/infiniband")


def rdma_devices() -> list[str]:
    """Names of this host's RDMA devices."""
    return sorted(path.name for path in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []


class MooncakeTransport:
    """A TransferEngine of its own beside upstream's. Raises FlagError, naming the flag, where it cannot start."""

    def __init__(self, host: str, protocol: str, device: str = "") -> None:
        if protocol == "tcp":
            # Without it the engine looks for InfiniBand devices first (upstream sets it for mooncake_tcp, too).
            os.environ.setdefault("MC_FORCE_TCP", "1")
        elif not rdma_devices():
            # The engine itself would fall back to TCP without a word.
            raise FlagError(f"--kv-transport-protocol {protocol}: this host has no RDMA device; use auto or tcp")
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise FlagError(
                f"--kv-transport mooncake: the Mooncake engine does not load ({error}); install "
                "'sglang-dualpath[cpu]' (or [cuda]) and the system libraries libibverbs1 and librdmacm1"
            ) from None
        self._engine: Any = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, device) != 0:
            raise FlagError(f"--kv-transport-protocol {protocol}: Mooncake found no such device on {host}; try tcp")
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self._registered: list[int] = []

    def register(self, address: int, n_bytes: int) -> None:
        """See `Transport.register`."""
        if self._engine.register_memory(address, n_bytes) != 0:
            raise TransferError(f"Mooncake refused to register {n_bytes} bytes")
        self._registered.append(address)

    def read(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.read`."""
        code = self._engine.batch_transfer_sync_read(peer, list(local), list(remote), list(lengths))
        if code != 0:
            raise TransferError(f"read of {sum(lengths)} bytes from {peer} ended with Mooncake code {code}")

    def write(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.write`."""
        code = self._engine.batch_transfer_sync_write(peer, list(local), list(remote), list(lengths))
        if code != 0:
            raise TransferError(f"write of {sum(lengths)} bytes to {peer} ended with Mooncake code {code}")

    def close(self) -> None:
        """See `Transport.close`."""
        for address in self._registered:
            self._engine.unregister_memory(address)
        self._registered.clear()

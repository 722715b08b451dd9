"""The Mooncake TransferEngine as transport: TCP anywhere, RDMA and GPU memory where there is hardware."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_dualpath.config import FlagError
from sglang_dualpath.transport.transport import TransferError
from sglang_dualpath.transport.window import move_pieces

RDMA_DEVICES = Path("/sys/class/infiniband")


def rdma_devices() -> list[str]:
    """Names of this host's RDMA devices."""
    return sorted(path.name for path in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []


class MooncakeTransport:
    """A TransferEngine of its own beside upstream's. Raises FlagError, naming the flag, where it cannot start.

    Over TCP its batches are not used: one of more pieces than its queue holds is refused, and a failed one returns while
    its other pieces still move (both seen in 0.3.13.post1), so that memory would be reused under them. A peer that does
    not answer at all fails a piece after 10 s (the engine's own default is 30 s; `MC_TCP_PROGRESS_TIMEOUT_SEC` and
    `MC_TCP_STATUS_TIMEOUT_SEC` change it), one that is gone fails at once or within about a second.

    Over RDMA batches go whole (one doorbell for many pieces): pieces of a failed batch may be under way for as long as
    the device retries them.
    """

    def __init__(self, host: str, protocol: str, device: str = "") -> None:
        if protocol == "tcp":
            # Without it the engine looks for InfiniBand devices first (upstream sets it for mooncake_tcp, too).
            os.environ.setdefault("MC_FORCE_TCP", "1")
            os.environ.setdefault("MC_TCP_PROGRESS_TIMEOUT_SEC", "10")
            os.environ.setdefault("MC_TCP_STATUS_TIMEOUT_SEC", "10")
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
        self._protocol = protocol
        self._registered: list[int] = []

    def register(self, address: int, n_bytes: int) -> None:
        """See `Transport.register`."""
        if self._engine.register_memory(address, n_bytes) != 0:
            raise TransferError(f"Mooncake refused to register {n_bytes} bytes")
        self._registered.append(address)

    def read(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.read`."""
        if not self._moves("read", peer, local, remote, lengths):
            raise TransferError(f"read of {sum(lengths)} bytes from {peer} failed; Mooncake's log says why")

    def write(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.write`."""
        if not self._moves("write", peer, local, remote, lengths):
            raise TransferError(f"write of {sum(lengths)} bytes to {peer} failed; Mooncake's log says why")

    def _moves(self, verb: str, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> bool:
        pieces = list(zip(local, remote, lengths, strict=True))
        if self._protocol != "tcp":
            batch = getattr(self._engine, f"batch_transfer_sync_{verb}")
            return batch(peer, list(local), list(remote), list(lengths)) == 0
        start = getattr(self._engine, f"batch_transfer_async_{verb}")

        def submit(piece: int) -> int:
            here, there, n_bytes = pieces[piece]
            return start(peer, [here], [there], [n_bytes])

        return move_pieces(len(pieces), submit, self._engine.transfer_check_status)

    def close(self) -> None:
        """See `Transport.close`."""
        for address in self._registered:
            self._engine.unregister_memory(address)
        self._registered.clear()

"""What both sides' KV managers share: upstream's rendezvous with our frames on its control socket."""

import logging
import threading
from typing import Any

import zmq
from sglang.srt.disaggregation.common.conn import CommonKVManager

from sglang_dualpath.engine.resources import EngineResources, current
from sglang_dualpath.transport.transport import TransferError

logger = logging.getLogger(__name__)

_POLL_MS = 200


class RendezvousManager(CommonKVManager):
    """Upstream's `CommonKVManager` (bootstrap, status, heartbeat) with a control thread that takes our messages too."""

    kv_status_msg_tag = b"DUALPATH_STATUS"
    kv_status_msg_carries_reason = True
    supports_deferred_decode_kv_release = True

    def __init__(self, args: Any, disaggregation_mode: Any, server_args: Any, is_mla_backend: bool | None = False):
        super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        # Upstream switches acknowledged aborts on by environment; our buffers always need the acknowledgement.
        self.enable_deferred_decode_kv_release = True
        self.resources: EngineResources = current()
        for address, n_bytes in zip(args.aux_data_ptrs, args.aux_data_lens, strict=True):
            self.resources.transport.register(address, n_bytes)
        self._stopping = False

    def start_control_thread(self) -> None:
        """Begin to take messages; called at the end of a subclass's construction."""
        self._control_thread = threading.Thread(target=self._control, name="dualpath-control", daemon=True)
        self._control_thread.start()

    def handle(self, frames: list[bytes]) -> None:
        """Take one multipart message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called a few times a second between messages."""

    def _control(self) -> None:
        poller = zmq.Poller()
        poller.register(self.server_socket, zmq.POLLIN)
        while not self._stopping:
            try:
                if poller.poll(_POLL_MS):
                    self.handle(self.server_socket.recv_multipart())
                self.tick()
            except zmq.ContextTerminated:
                return
            except Exception:
                logger.exception("DualPath control message dropped")
            self.resources.wakeup.set()

    def teardown(self) -> None:
        """Stop the control thread (upstream calls it at a role switch, which `--kv-path` refuses)."""
        self._stopping = True
        self._control_thread.join(timeout=2)

    def write_metadata(self, session: str, aux_index: int, remote: list[int], item_bytes: list[int], to: int) -> None:
        """Write this request's row of every metadata buffer to row `to` of the peer's (upstream `MetadataBuffers`)."""
        if item_bytes != list(self.kv_args.aux_item_lens):
            raise TransferError("the engines' metadata buffers differ; run the same version with the same settings")
        local = [a + n * aux_index for a, n in zip(self.kv_args.aux_data_ptrs, item_bytes, strict=True)]
        target = [a + n * to for a, n in zip(remote, item_bytes, strict=True)]
        self.resources.transport.write(session, local, target, item_bytes)

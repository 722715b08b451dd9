"""Upstream's receiver of one request, in front of a room and its place in the buffer."""

import logging
import time
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import CommonKVReceiver, KVTransferError

from sglang_dualpath.decode.manager import DecodeKVManager
from sglang_dualpath.decode.room import DecodeRoom
from sglang_dualpath.exchange import messages
from sglang_dualpath.exchange.messages import Message

logger = logging.getLogger(__name__)


class DecodeReceiver(CommonKVReceiver):
    """Receives a prompt's KV into DRAM; upstream's seam is `KVTransferDestination.HOST`."""

    kv_mgr: DecodeKVManager
    supports_host_destination = True
    room: DecodeRoom | None = None

    def attach(self, room: DecodeRoom) -> None:
        """Tell the receiver whose KV it receives; upstream's constructor does not."""
        self.room = room
        self.kv_mgr.open_room(room)

    def init(self, prefill_dp_rank: int) -> None:
        """Pair with the prefill engine, which must have the same TP size."""
        info = self.kv_mgr.prefill_info_table.get(self.bootstrap_addr)
        if info is not None and info.attn_tp_size != self.kv_mgr.attn_tp_size:
            self.fail(
                f"--tp-size differs: prefill {info.attn_tp_size}, decode {self.kv_mgr.attn_tp_size}; give both the same"
            )
            return
        super().init(prefill_dp_rank)

    def fail(self, reason: str) -> None:
        """Mark the request failed with a reason that reaches the client."""
        self.kv_mgr.record_failure(self.bootstrap_room, reason)
        self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)

    def reserve(self) -> bool:
        """Lease buffer for the whole prompt; False while there is not enough. A prompt larger than the buffer fails."""
        assert self.room is not None
        buffer = self.kv_mgr.resources.buffer
        n_blocks = -(-self.room.prompt_tokens // buffer.geometry.block_tokens)
        if n_blocks > buffer.capacity_blocks:
            self.fail(
                f"a prompt of {self.room.prompt_tokens} tokens needs {n_blocks} blocks, and --kv-buffer-size of the "
                f"decode engine holds {buffer.capacity_blocks}; make it larger"
            )
            return False
        self.room.lease = buffer.lease(n_blocks)
        return self.room.lease is not None

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: list | None = None,
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.HOST,
        device_kv_indices: Any = None,
    ) -> None:
        """Have the read planned; the prefill engine is told where the KV goes when it is."""
        if self.bootstrap_infos is None:
            self.fail(f"Could not fetch prefill parallel info from bootstrap_addr: {self.bootstrap_addr}")
            return
        assert self.room is not None and aux_index is not None
        self.init_time = time.time()
        self.kv_mgr.planner.submit(self.room, aux_index, self._send, self.fail)

    def _send(self, message: Message) -> bool:
        return all(
            self._send_bootstrap_message(
                bootstrap_info=info, message=messages.encode(message), operation="send_metadata"
            )
            for info in self.bootstrap_infos
        )

    def abort(self) -> None:
        """Stop reading, and ask the prefill engine to say when it has stopped writing."""
        self._stop()
        super().abort()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """See upstream; whatever ends a request here also stops its read."""
        self._stop()
        super().ensure_abort_notified(force_arm=force_arm)

    def _stop(self) -> None:
        if self.room is not None:
            with self.room.lock:
                self.room.aborted = True
                if self.room.read is not None:
                    self.room.read.cancel()

    def is_abort_release_safe(self) -> bool:
        """Whether nobody writes into the lease any more: not this engine's reader, not the prefill engine."""
        room = self.room
        if room is None or room.lease is None:
            return True
        if room.is_reading:
            return False
        return not room.sent or room.peer_lost or self.kv_mgr.is_abort_release_safe(self.bootstrap_room, 1)

    def clear(self) -> None:
        """Upstream lets go of the request: its buffer is free."""
        super().clear()
        self.kv_mgr.clear_deferred_abort_state(self.bootstrap_room)
        if self.room is not None:
            self.kv_mgr.close_room(self.room)

    def failure_exception(self) -> None:
        """Raise what went wrong. Unlike upstream's, keeps the buffer: a late writer may still be at it."""
        self.conclude_state = KVPoll.Failed
        super().clear()
        with self.kv_mgr.failure_lock:
            reason = self.kv_mgr.failure_records.pop(self.bootstrap_room, None)
        raise KVTransferError(
            self.bootstrap_room,
            reason or "Failed due to an unknown reason from another rank",
            is_from_another_rank=reason is None,
        )

"""Upstream's sender of one request, in front of a room."""

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferMetric
from sglang.srt.disaggregation.common.conn import CommonKVSender

from sglang_dualpath.prefill.manager import PrefillKVManager
from sglang_dualpath.prefill.room import PrefillRequest


class PrefillSender(CommonKVSender):
    """KV itself goes out layer by layer while the forward runs (`prefill.forward`); here pass only the milestones."""

    supports_host_tensor_indices = False
    kv_mgr: PrefillKVManager

    def attach(self, request: PrefillRequest) -> None:
        """Tell the sender whose KV it sends; upstream's constructor does not."""
        self.kv_mgr.open_room(self.bootstrap_room, request)

    def send(
        self,
        kv_indices: Any,
        state_indices: list | None = None,
        num_kv_tokens: int | None = None,
        indices_event: object | None = None,
    ) -> None:
        """A chunk has been computed. Its layers are queued already; the last one ends the stream."""
        if self.conclude_state in (KVPoll.Success, KVPoll.Failed):
            return
        self.curr_idx += len(kv_indices)
        if self.curr_idx < self.num_kv_indices:
            return
        room = self.kv_mgr.room_of_id(self.bootstrap_room)
        if room is not None and self.aux_index is not None:
            self.kv_mgr.finish(room, self.aux_index)

    def clear(self) -> None:
        """Upstream lets go of the request."""
        super().clear()
        self.kv_mgr.clear_room(self.bootstrap_room)

    def abort(self) -> None:
        """The request is cancelled here: tell the decode engine, and end what runs."""
        self.kv_mgr.fail_room(self.bootstrap_room, "Aborted by AbortReq.")
        super().abort()
        self.clear()

    def get_transfer_metric(self) -> KVTransferMetric:
        """Bytes that really crossed to the decode engine."""
        room = self.kv_mgr.room_of_id(self.bootstrap_room)
        self._transfer_metric.transfer_total_bytes = 0 if room is None else room.streamed_bytes
        return self._transfer_metric

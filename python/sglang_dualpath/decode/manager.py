"""The decode engine's end of the exchange."""

import itertools
import logging
import threading
from typing import Any

from sglang_dualpath.decode.planner import ReadPlanner
from sglang_dualpath.decode.room import DecodeRoom
from sglang_dualpath.exchange import messages
from sglang_dualpath.exchange.messages import PeerHello
from sglang_dualpath.exchange.rendezvous import RendezvousManager

logger = logging.getLogger(__name__)


class DecodeKVManager(RendezvousManager):
    """One a decode rank: its rooms, and what prefill engines tell of them."""

    supports_host_destination = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rooms: dict[int, DecodeRoom] = {}
        self._rooms_lock = threading.Lock()
        self.planner = ReadPlanner(self.resources, self.local_ip, self.rank_port)
        self.start_control_thread()
        self._start_heartbeat_checker_thread()

    def build_receiver_registration_message(self) -> list[bytes]:
        """What this engine is, for each prefill engine it pairs with (called by upstream's receiver)."""
        return messages.encode(
            PeerHello(
                session=self.resources.transport.session,
                tp_size=self.attn_tp_size,
                aux_addresses=list(self.kv_args.aux_data_ptrs),
                aux_item_bytes=list(self.kv_args.aux_item_lens),
            )
        )

    def open_room(self, room: DecodeRoom) -> None:
        """A request has arrived."""
        with self._rooms_lock:
            self._rooms[room.room] = room
        self.resources.counters.add("decode_requests")
        self.resources.counters.add("prompt_tokens", room.prompt_tokens)

    def close_room(self, room: DecodeRoom) -> None:
        """The request's KV is admitted, or nobody can write it any more: its buffer is free."""
        self.planner.settle(room)
        with self._rooms_lock:
            if self._rooms.get(room.room) is room:
                del self._rooms[room.room]
        room.release()

    def describe_rooms(self, limit: int) -> list[dict[str, Any]]:
        """The oldest open rooms, at most `limit`."""
        with self._rooms_lock:
            rooms = list(itertools.islice(self._rooms.values(), limit))
        return [room.describe() for room in rooms]

    @property
    def n_rooms(self) -> int:
        """Requests between arrival and admission."""
        return len(self._rooms)

    def handle(self, frames: list[bytes]) -> None:
        """Take a status, or the acknowledgement of an abort, from a prefill engine."""
        if self.handle_abort_ack_message(frames):
            return
        status = self.parse_kv_status_message(frames)
        if status is None:
            self.resources.counters.add("malformed_messages")
            return
        room, poll, prefill_rank, reason = status
        self.apply_prefill_status(bootstrap_room=room, status=poll, prefill_rank=prefill_rank, failure_reason=reason)

    def _handle_node_failure(self, failed_bootstrap_addr: str) -> None:
        """A prefill engine misses its heartbeats: its process is gone, and with it whatever wrote into our buffer."""
        with self._rooms_lock:
            lost = [room for room in self._rooms.values() if room.bootstrap_addr == failed_bootstrap_addr]
        for room in lost:
            room.peer_lost = True
        super()._handle_node_failure(failed_bootstrap_addr)
        self.resources.wakeup.set()

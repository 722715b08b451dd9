"""The prefill engine's end of the exchange: rooms, their jobs, and the verdict that reaches the decode engine."""

import itertools
import logging
import threading
import time
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import ABORT_TAG, AbortNotification, AckTarget

from sglang_dualpath.exchange import messages
from sglang_dualpath.exchange.messages import Destination, PeerHello, ReadProgress
from sglang_dualpath.exchange.rendezvous import RendezvousManager
from sglang_dualpath.prefill.ended_rooms import EndedRooms
from sglang_dualpath.prefill.reading import PromptReader
from sglang_dualpath.prefill.room import PrefillRequest, PrefillRoom
from sglang_dualpath.prefill.stream import Finish, HitBlocks, PeerStream, StagingArea, StreamEvents, StreamItem
from sglang_dualpath.telemetry.stages import Stage

logger = logging.getLogger(__name__)

ABORTED_BY_DECODE = "aborted by the decode engine"

STREAM_STAGING_BYTES = 8 * 2**20


class PrefillKVManager(RendezvousManager):
    """One a prefill rank. Called by the scheduler thread, the control thread, and the reader, loader and stream threads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rooms: dict[int, PrefillRoom] = {}
        self._rooms_lock = threading.Lock()
        self._rooms_by_rid: dict[str, PrefillRoom] = {}
        self._peers: dict[str, PeerHello] = {}
        self._streams: dict[str, PeerStream] = {}
        self._ack_targets: dict[int, list[AckTarget]] = {}
        self._ended_rooms = EndedRooms()
        self.reader = PromptReader(self.resources, self._on_eligible, self.end_job)
        self.start_control_thread()

    # ---- the scheduler's side

    def open_room(self, room_id: int, request: PrefillRequest) -> None:
        """A request has arrived; its destination may have come before it."""
        room = self._room(room_id)
        with room.lock:
            room.request = request
            room.leave_stage(time.monotonic())
        with self._rooms_lock:
            self._rooms_by_rid[request.rid] = room
        self.resources.counters.add("prefill_requests")
        ended = self._ended_rooms.take(room_id)
        if ended is not None:
            self.fail_room(room_id, ended)
        elif room.failure is not None:
            # Refused before the request was there: upstream, which did not know the room then, is told again.
            self._conclude_failure(room_id, room.failure, tell_decode=True)
        elif not self._refuse_other_length(room):
            self.reader.begin(room)

    def room_of_rid(self, rid: str) -> PrefillRoom | None:
        """The open room of a request, if it is one of ours."""
        return self._rooms_by_rid.get(rid)

    def room_of_id(self, room_id: int) -> PrefillRoom | None:
        """The open room with this `bootstrap_room`."""
        return self._rooms.get(room_id)

    def clear_room(self, room_id: int) -> None:
        """Upstream has let go of the request; what still runs for it ends first."""
        with self._rooms_lock:
            room = self._rooms.get(room_id)
            if room is not None and room.request is not None:
                self._rooms_by_rid.pop(room.request.rid, None)
        if room is None:
            return
        with room.lock:
            room.cleared = True
            half = room.destination is None or room.request is None
        if half:
            self._ended_rooms.remember(room_id, room.failure or "the request ended at the prefill engine")
        self._stop_reads(room)
        room.release_runs()
        self._forget_if_idle(room)

    def fail_room(self, room_id: int, reason: str, *, tell_decode: bool = True) -> None:
        """Mark a request failed; the first reason stands."""
        with self._rooms_lock:
            room = self._rooms.get(room_id)
        if room is not None:
            with room.lock:
                if room.failure is not None:
                    return
                room.failure = reason
            self._stop_reads(room)
        self._conclude_failure(room_id, reason, tell_decode=tell_decode)

    def _conclude_failure(self, room_id: int, reason: str, *, tell_decode: bool) -> None:
        room = self._rooms.get(room_id)
        destination = None if room is None else room.destination
        targets = [(destination.endpoint, destination.port)] if destination is not None and tell_decode else []
        self.conclude_failure(bootstrap_room=room_id, failure_reason=reason, targets=targets)
        self.resources.wakeup.set()

    def _refuse_other_length(self, room: PrefillRoom) -> bool:
        """Fail a room whose two engines were sent different prompts; whether it was one."""
        if room.request is None or room.destination is None:
            return False
        if room.request.prompt_tokens == room.destination.prompt_tokens:
            return False
        self.fail_room(room.room, "prefill and decode engine were sent prompts of different lengths")
        return True

    def stream(self, item: StreamItem) -> bool:
        """Queue something for the room's decode engine; False when the room has ended."""
        if not item.room.begin_job():
            return False
        assert item.room.destination is not None
        self._stream_of(item.room.destination.session).put(item)
        return True

    def finish(self, room: PrefillRoom, aux_index: int) -> None:
        """All of the request's KV is queued: end its stream with the metadata of the first token."""
        destination = room.destination
        assert destination is not None
        self.leave_stage(room, "compute")

        def send_metadata() -> None:
            peer = self._peers[destination.session]
            self.write_metadata(
                destination.session, aux_index, peer.aux_addresses, peer.aux_item_bytes, destination.aux_index
            )

        self.stream(Finish(room, send_metadata))

    # ---- background jobs

    def end_job(self, room: PrefillRoom) -> None:
        """One background job of the room has ended; the last one of an ended room lets the room go."""
        if room.end_job() == 0 and room.ended:
            self._forget_if_idle(room)

    def _forget_if_idle(self, room: PrefillRoom) -> None:
        with room.lock:
            if room.jobs or not room.ended:
                return
            room.release_runs()
            if room.cleared:
                with self._rooms_lock:
                    self._rooms.pop(room.room, None)
        self._acknowledge(room.room)

    def _stop_reads(self, room: PrefillRoom) -> None:
        with room.lock:
            reads = [run.read for run in room.runs if run.read is not None]
        for read in reads:
            read.cancel()

    def _on_eligible(self, room: PrefillRoom) -> None:
        geometry = self.resources.paged.geometry
        if room.remote_ready_blocks:
            self.resources.counters.add("path_b_blocks", room.remote_ready_blocks)
        for run in list(room.runs):
            n_blocks = min(run.good_blocks, room.usable_hit_blocks - run.first_block)
            if n_blocks > 0:
                self.resources.counters.add("path_a_blocks", n_blocks)
                run.lease.retain()
                if not self.stream(HitBlocks(room, run, n_blocks)):
                    run.lease.release()
        self.leave_stage(room, "load")
        logger.debug("room %d eligible with %d hit tokens", room.room, room.usable_hit_blocks * geometry.block_tokens)
        self.update_status(room.room, KVPoll.WaitingForInput)
        self.resources.wakeup.set()

    def leave_stage(self, room: PrefillRoom, stage: Stage) -> None:
        """The request has come through a stage: its time is counted."""
        self.resources.stages.observe(stage, room.leave_stage(time.monotonic()))

    def _on_finished(self, room: PrefillRoom) -> None:
        self.leave_stage(room, "transfer")
        destination = room.destination
        assert destination is not None
        self.conclude_transfer(
            bootstrap_room=room.room, status=KVPoll.Success, targets=[(destination.endpoint, destination.port)]
        )

    def _stream_of(self, session: str) -> PeerStream:
        with self._rooms_lock:
            if session not in self._streams:
                events = StreamEvents(
                    finished=self._on_finished,
                    failed=lambda room, reason: self.fail_room(room.room, reason),
                    end_job=self.end_job,
                )
                staging = StagingArea(self.resources, STREAM_STAGING_BYTES)
                self._streams[session] = PeerStream(self.resources, session, staging, events)
            return self._streams[session]

    # ---- the control thread's side

    def handle(self, frames: list[bytes]) -> None:
        """Take a message of a decode engine. Malformed ones are counted and dropped."""
        if frames and frames[0] == ABORT_TAG:
            self._on_abort(frames)
            return
        try:
            message = messages.decode(frames)
        except ValueError as error:
            self.resources.counters.add("malformed_messages")
            logger.warning("dropped a control message: %s", error)
            return
        if isinstance(message, PeerHello):
            self._peers[message.session] = message
        elif isinstance(message, Destination):
            self._on_destination(message)
        else:
            self._on_progress(message)

    def tick(self) -> None:
        """Forget destinations whose request never came; hand buffer to waiting reads."""
        self.reader.retry_waiting()
        now = time.monotonic()
        with self._rooms_lock:
            orphans = [
                room.room
                for room in self._rooms.values()
                if room.request is None and now - room.created_at_s > self.bootstrap_timeout
            ]
        for room_id in orphans:
            self.fail_room(room_id, "the request never reached the prefill engine")
            self.clear_room(room_id)

    def _on_destination(self, message: Destination) -> None:
        ended = self._ended_rooms.take(message.room)
        if ended is not None:
            self.send_kv_status_message(
                targets=[(message.endpoint, message.port)],
                bootstrap_room=message.room,
                status=KVPoll.Failed,
                failure_reason=ended,
            )
            return
        room = self._room(message.room)
        with room.lock:
            if room.destination is not None or room.ended:
                return
            room.destination = message
        peer = self._peers.get(message.session)
        if peer is None or peer.tp_size != self.attn_tp_size:
            reason = (
                "the decode engine never introduced itself"
                if peer is None
                else f"--tp-size differs: prefill {self.attn_tp_size}, decode {peer.tp_size}; give both the same"
            )
            self.fail_room(message.room, reason)
            return
        if not self._refuse_other_length(room):
            self.reader.begin(room)

    def _on_progress(self, message: ReadProgress) -> None:
        with self._rooms_lock:
            room = self._rooms.get(message.room)
        if room is None:
            return
        if not room.started and not room.ended:
            # The decode side can be done reading before the request has reached this engine.
            with room.lock:
                started = room.started
                if not started:
                    room.early_progress_blocks = message.ready_blocks
            if not started:
                return
        self.reader.remote_progress(room, message.ready_blocks)

    def _on_abort(self, frames: list[bytes]) -> None:
        notification = AbortNotification.from_zmq(frames)
        if notification is None:
            return
        target = notification.deferred_ack_target()
        with self._rooms_lock:
            room = self._rooms.get(notification.room)
            if target is not None:
                self._ack_targets.setdefault(notification.room, []).append(target)
        if room is None or room.request is None:
            # Should the request still come, it must not wait for a destination that never will.
            self._ended_rooms.remember(notification.room, ABORTED_BY_DECODE)
        if room is None:
            self._acknowledge(notification.room)
            return
        self.fail_room(notification.room, ABORTED_BY_DECODE, tell_decode=False)
        if room.request is None:
            self.clear_room(notification.room)
        self._forget_if_idle(room)

    def _acknowledge(self, room_id: int) -> None:
        """Tell the decode engine that nothing here reads or writes this room's buffer any more."""
        with self._rooms_lock:
            targets = self._ack_targets.pop(room_id, [])
        for target in targets:
            self._send_abort_ack(room_id, target)

    def _room(self, room_id: int) -> PrefillRoom:
        with self._rooms_lock:
            if room_id not in self._rooms:
                self._rooms[room_id] = PrefillRoom(room_id, time.monotonic())
            return self._rooms[room_id]

    def describe_rooms(self, limit: int) -> list[dict[str, Any]]:
        """The oldest open rooms, at most `limit`."""
        with self._rooms_lock:
            rooms = list(itertools.islice(self._rooms.values(), limit))
        return [room.describe() for room in rooms]

    @property
    def n_rooms(self) -> int:
        """Requests this engine still holds something for."""
        return len(self._rooms)

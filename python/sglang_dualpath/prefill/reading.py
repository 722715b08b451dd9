"""Path A's reads, and the rule that makes a request eligible: its hit blocks are in a DRAM buffer, here or at the peer.

A plan that cannot be honoured shrinks: what the decode engine could not read this engine reads (B -> A), and what
neither could read is computed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.prefill.room import LocalRun, PrefillRoom
from sglang_dualpath.store.block_store import ReadOutcome
from sglang_dualpath.store.outcome import count_read_outcomes
from sglang_dualpath.store.read_queue import BatchRead

logger = logging.getLogger(__name__)


class PromptReader:
    """Drives rooms from 'destination known' to 'eligible'; callable from any thread."""

    def __init__(
        self,
        resources: EngineResources,
        on_eligible: Callable[[PrefillRoom], None],
        end_job: Callable[[PrefillRoom], None],
    ) -> None:
        self._resources = resources
        self._on_eligible = on_eligible
        self._end_job = end_job
        self._waiting: deque[tuple[PrefillRoom, int, int]] = deque()
        self._waiting_lock = threading.Lock()

    def begin(self, room: PrefillRoom) -> None:
        """Start once both the request and its destination are known; later calls do nothing.

        A job spans this, as it does `remote_progress`: no read that ends meanwhile makes the room eligible too early.
        """
        with room.lock:
            if room.started or room.request is None or room.destination is None or not room.begin_job():
                return
            room.started = True
            hit_blocks = self._agreed_hit_blocks(room)
            decode_blocks = min(room.destination.decode_read_blocks, hit_blocks)
            if room.destination.decode_read_blocks == 0:
                room.remote_ready_blocks = 0
            room.read_to_block = hit_blocks
            early = room.early_progress_blocks
            self._resources.stages.observe("queue", room.leave_stage(time.monotonic()))
        self._read(room, decode_blocks, hit_blocks)
        if early is not None:
            self.remote_progress(room, early)
        self._end_job(room)
        self.advance(room)

    def _agreed_hit_blocks(self, room: PrefillRoom) -> int:
        assert room.request is not None and room.destination is not None
        hit = room.destination.hit_blocks
        keys = room.request.keys
        if hit == 0:
            return 0
        if hit > len(keys) or keys[hit - 1] != room.destination.last_hit_key:
            self._resources.counters.fallback(
                "namespace_mismatch",
                f"room {room.room}: the decode engine keys this prompt's blocks differently (other model, weights, "
                "dtype or --tp-size); the prompt is computed",
            )
            return 0
        return hit

    def remote_progress(self, room: PrefillRoom, ready_blocks: int) -> None:
        """The decode engine has read `ready_blocks` good leading blocks; what it could not, this engine reads."""
        with room.lock:
            if room.destination is None or room.remote_ready_blocks is not None or not room.begin_job():
                return
            promised = min(room.destination.decode_read_blocks, room.read_to_block)
            room.remote_ready_blocks = min(ready_blocks, promised)
            short = room.remote_ready_blocks < promised
        if short:
            self._resources.counters.fallback(
                "decode_read_failed",
                f"room {room.room}: the decode engine read {ready_blocks} of {promised} blocks; reading the rest here",
            )
            self._read(room, ready_blocks, promised)
        self._end_job(room)
        self.advance(room)

    def _read(self, room: PrefillRoom, first_block: int, stop_block: int) -> None:
        """Lease buffer for blocks [first, stop) and queue their read; without room in the buffer, wait for it."""
        count = stop_block - first_block
        if count <= 0:
            return
        capacity = self._resources.buffer.capacity_blocks
        if count > capacity:
            self._resources.counters.fallback(
                "prefill_buffer_full",
                f"room {room.room}: {count} hit blocks exceed --kv-buffer-size ({capacity} blocks); the rest is computed",
            )
            count = capacity
        with room.lock:
            if not room.begin_job():
                return
        if not self._try_read(room, first_block, count):
            with self._waiting_lock:
                self._waiting.append((room, first_block, count))

    def _try_read(self, room: PrefillRoom, first_block: int, count: int) -> bool:
        lease = self._resources.buffer.lease(count)
        if lease is None:
            return False
        run = LocalRun(first_block, lease)
        with room.lock:
            ended = room.ended or not room.holds_runs
            if not ended:
                lease.retain()  # the read's hold; the room's own may be gone as soon as the lock is
                room.runs.append(run)
        if ended:
            lease.release()
            self._end_job(room)
            return True
        assert room.request is not None
        keys = room.request.keys[first_block : first_block + count]
        views = [lease.view(i) for i in range(count)]
        tokens = self._resources.paged.geometry.block_tokens
        run.read = self._resources.read_queue.submit(
            keys, views, tokens, on_done=lambda batch: self._on_read(room, run, batch)
        )
        return True

    def retry_waiting(self) -> None:
        """Give buffer that has come free to the reads that wait for it, oldest first."""
        while True:
            with self._waiting_lock:
                if not self._waiting:
                    return
                room, first_block, count = self._waiting[0]
                if not room.ended and self._resources.buffer.n_free_blocks < count:
                    return
                self._waiting.popleft()
            if room.ended:
                self._end_job(room)
            elif not self._try_read(room, first_block, count):
                with self._waiting_lock:
                    self._waiting.appendleft((room, first_block, count))
                return

    @property
    def n_waiting(self) -> int:
        """Reads that wait for buffer."""
        return len(self._waiting)

    def _on_read(self, room: PrefillRoom, run: LocalRun, batch: BatchRead) -> None:
        good = batch.n_ok_prefix
        with room.lock:
            run.good_blocks = good
            run.read = None
        run.lease.release()
        count_read_outcomes(self._resources.counters, batch.outcomes)
        self._resources.counters.add("read_blocks", good)
        self._resources.counters.add("read_bytes", good * self._resources.paged.geometry.full_block_bytes)
        if good < run.lease.n_blocks and not room.ended:
            outcome = batch.outcomes[good]
            if outcome is not ReadOutcome.SKIPPED:
                self._resources.counters.fallback(
                    "prefill_read_failed",
                    f"room {room.room}: block {run.first_block + good} is {outcome.name.lower()}; "
                    f"computing from token {(run.first_block + good) * self._resources.paged.geometry.block_tokens}",
                )
        self._end_job(room)
        self.advance(room)

    def advance(self, room: PrefillRoom) -> None:
        """Make the room eligible when nothing is being read for it any more."""
        with room.lock:
            if room.eligible or room.ended or not room.started or room.remote_ready_blocks is None or room.jobs:
                return
            room.eligible = True
            room.usable_hit_blocks = room.hit_end()
        self._on_eligible(room)

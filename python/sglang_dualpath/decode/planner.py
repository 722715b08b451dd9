"""Deciding, for one request, what is cached and which side reads it; then path B's reads.

Runs off the event loop: looking into a store can be slow. The router's plan decides the side; without one (an upstream
router in front) the shorter of the two queues does, as far as this engine can see them.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sglang_dualpath.decode.room import DecodeRoom
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange.messages import Destination, Message, ReadProgress
from sglang_dualpath.store.block_store import ReadOutcome
from sglang_dualpath.store.outcome import count_read_outcomes
from sglang_dualpath.store.read_queue import BatchRead

logger = logging.getLogger(__name__)

PLANNER_THREADS = 2
WRITE_WAIT_S = 10.0
"""How long a look-up waits for blocks that are on their way into the store (the last turn's), before it counts them out."""

Send = Callable[[Message], bool]


class ReadPlanner:
    """Plans rooms on a few threads of its own."""

    def __init__(self, resources: EngineResources, endpoint: str, port: int) -> None:
        self._resources = resources
        self._endpoint = endpoint
        self._port = port
        self._threads = ThreadPoolExecutor(PLANNER_THREADS, thread_name_prefix="dualpath-plan")
        self._delegated_tokens = 0
        self._lock = threading.Lock()

    def submit(self, room: DecodeRoom, aux_index: int, send: Send, failed: Callable[[str], None]) -> None:
        """Plan `room`, whose lease is there, and tell its prefill engine with `send`."""
        room.planning = True
        self._threads.submit(self._plan_safely, room, aux_index, send, failed)

    def settle(self, room: DecodeRoom) -> None:
        """The room is over: what was delegated to its prefill engine no longer waits there."""
        with self._lock:
            self._delegated_tokens -= room.delegated_tokens
            room.delegated_tokens = 0

    def close(self) -> None:
        """Drop what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _plan_safely(self, room: DecodeRoom, aux_index: int, send: Send, failed: Callable[[str], None]) -> None:
        try:
            self._plan(room, aux_index, send)
        except Exception as error:
            logger.exception("planning room %d", room.room)
            failed(f"planning the KV reads failed: {error}")
        finally:
            room.planning = False
            self._resources.wakeup.set()

    def _plan(self, room: DecodeRoom, aux_index: int, send: Send) -> None:
        geometry = self._resources.paged.geometry
        # The last token must be computed for its logits, so a hit ends before it.
        usable = room.chain.keys[: (room.prompt_tokens - 1) // geometry.block_tokens]
        hit_blocks = self._look_up(room, usable)
        decode_blocks = round(hit_blocks * self._share(room)) if hit_blocks else 0
        with room.lock:
            if room.aborted or room.lease is None:
                return
            room.hit_blocks = hit_blocks
            addresses = [room.lease.address(i) for i in range(room.lease.n_blocks)]
            views = [room.lease.view(i) for i in range(decode_blocks)]
            if decode_blocks:
                room.read = self._resources.read_queue.submit(
                    usable[:decode_blocks], views, geometry.block_tokens, lambda read: self._on_read(room, read, send)
                )
            with self._lock:
                room.delegated_tokens = (hit_blocks - decode_blocks) * geometry.block_tokens
                self._delegated_tokens += room.delegated_tokens
            room.sent = send(
                Destination(
                    room=room.room,
                    session=self._resources.transport.session,
                    endpoint=self._endpoint,
                    port=self._port,
                    aux_index=aux_index,
                    prompt_tokens=room.prompt_tokens,
                    block_addresses=addresses,
                    hit_blocks=hit_blocks,
                    decode_read_blocks=decode_blocks,
                    last_hit_key=usable[hit_blocks - 1] if hit_blocks else b"",
                )
            )
        self._resources.counters.add("hit_blocks", hit_blocks)
        if hit_blocks:
            kind = "prefill" if decode_blocks == 0 else "decode" if decode_blocks == hit_blocks else "split"
            self._resources.counters.add(f"planned_{kind}_reads")

    def _look_up(self, room: DecodeRoom, keys: list[bytes]) -> int:
        """Leading blocks in the store, including those this engine is just writing."""
        if not keys:
            return 0
        if not self._resources.writer.wait_for(keys, WRITE_WAIT_S):
            logger.warning(
                "room %d: blocks of its prefix are still being written after %.0f s", room.room, WRITE_WAIT_S
            )
        try:
            return self._resources.store.present_prefix(keys)
        except OSError as error:
            self._resources.counters.fallback("lookup_failed", f"room {room.room}: {error}; the prompt is computed")
            return 0

    def _share(self, room: DecodeRoom) -> float:
        """What this engine reads of the room's cached blocks, 0 to 1."""
        if self._resources.config.path == "prefill":
            if room.planned_share:
                self._resources.counters.fallback(
                    "plan_needs_dual",
                    f"room {room.room}: the router plans a decode-side read; start with --kv-path dual",
                )
            return 0.0
        if room.planned_share is not None:
            return room.planned_share
        return 1.0 if self._resources.nic.node_queued_tokens() <= self._delegated_tokens else 0.0

    def _on_read(self, room: DecodeRoom, read: BatchRead, send: Send) -> None:
        counters = self._resources.counters
        count_read_outcomes(counters, read.outcomes)
        good = read.n_ok_prefix
        counters.add("read_blocks", good)
        counters.add("read_bytes", good * self._resources.paged.geometry.full_block_bytes)
        if good < len(read.outcomes) and read.outcomes[good] is not ReadOutcome.SKIPPED:
            logger.warning("room %d: block %d is %s", room.room, good, read.outcomes[good].value)
        with room.lock:
            room.ready_blocks = good
            if not room.aborted:
                send(ReadProgress(room=room.room, ready_blocks=good))
        self._resources.wakeup.set()

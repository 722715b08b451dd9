"""Streaming to one decode engine: each finished layer's new tokens, whole hit blocks read here, then the first token.

One worker thread a peer, so that a dead peer delays no other; within it strictly first in, first out, so a request's
end follows all its data.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.prefill.room import LocalRun, PrefillRoom
from sglang_dualpath.transport.transport import TransferError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """One layer's KV of tokens [start, stop) of a request, at `slots` of the pool."""

    room: PrefillRoom
    layer: int
    start_token: int
    slots: torch.Tensor
    ready: Any = None
    """An event of the device after which the rows are written; None where the host runs in step with it."""


@dataclass(frozen=True, slots=True)
class HitBlocks:
    """Whole blocks that this engine read from the store, straight from its buffer to the peer's."""

    room: PrefillRoom
    run: LocalRun
    n_blocks: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The request's KV is complete: send the first token's metadata, then say so."""

    room: PrefillRoom
    send_metadata: Callable[[], None]


StreamItem = LayerRows | HitBlocks | Finish


@dataclass(frozen=True, slots=True)
class StreamEvents:
    """What the stream tells its owner; called on the worker thread."""

    finished: Callable[[PrefillRoom], None]
    failed: Callable[[PrefillRoom, str], None]
    end_job: Callable[[PrefillRoom], None]


class PeerStream:
    """The worker of one decode engine (transport session)."""

    def __init__(self, resources: EngineResources, session: str, staging: "StagingArea", events: StreamEvents) -> None:
        self._resources = resources
        self._session = session
        self._staging = staging
        self._events = events
        self._items: queue.SimpleQueue[StreamItem | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"dualpath-stream-{session}", daemon=True)
        self._thread.start()

    def put(self, item: StreamItem) -> None:
        """Queue an item; the caller has begun a job on its room for it."""
        self._items.put(item)

    def close(self) -> None:
        """Finish what is queued, then stop."""
        self._items.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                if not item.room.ended:
                    self._send(item)
            except TransferError as error:
                self._events.failed(item.room, f"sending KV to the decode engine {self._session} failed: {error}")
            except Exception as error:
                logger.exception("stream to %s", self._session)
                self._events.failed(item.room, f"sending KV to the decode engine {self._session} failed: {error}")
            finally:
                self._release(item)

    def _send(self, item: StreamItem) -> None:
        if isinstance(item, LayerRows):
            self._send_rows(item)
        elif isinstance(item, HitBlocks):
            self._send_blocks(item)
        else:
            item.send_metadata()
            self._events.finished(item.room)

    def _release(self, item: StreamItem) -> None:
        if isinstance(item, HitBlocks):
            item.run.lease.release()
        self._events.end_job(item.room)
        self._resources.wakeup.set()

    def _send_blocks(self, item: HitBlocks) -> None:
        destination = item.room.destination
        assert destination is not None
        nbytes = self._resources.paged.geometry.full_block_bytes
        local = [item.run.lease.address(i) for i in range(item.n_blocks)]
        first = item.run.first_block
        remote = destination.block_addresses[first : first + item.n_blocks]
        self._resources.transport.write(self._session, local, remote, [nbytes] * item.n_blocks)
        item.room.streamed_bytes += nbytes * item.n_blocks
        self._resources.counters.add("sent_hit_bytes", nbytes * item.n_blocks)

    def _send_rows(self, item: LayerRows) -> None:
        if item.ready is not None:
            item.ready.synchronize()
        geometry = self._resources.paged.geometry
        step = self._staging.capacity_bytes // geometry.token_bytes
        for begin in range(0, len(item.slots), step):
            slots = item.slots[begin : begin + step]
            rows = self._staging.rows(len(slots), geometry.token_bytes)
            self._resources.paged.gather(item.layer, slots, rows)
            self._write_rows(item, item.start_token + begin, len(slots))
        nbytes = len(item.slots) * geometry.token_bytes
        item.room.streamed_bytes += nbytes
        self._resources.counters.add("sent_new_bytes", nbytes)

    def _write_rows(self, item: LayerRows, start_token: int, n_tokens: int) -> None:
        """Write staged rows of tokens [start, start + n) to where they belong in the peer's blocks."""
        geometry = self._resources.paged.geometry
        destination = item.room.destination
        assert destination is not None
        local: list[int] = []
        remote: list[int] = []
        lengths: list[int] = []
        token = start_token
        while token < start_token + n_tokens:
            block, offset = divmod(token, geometry.block_tokens)
            stop = min(geometry.block_tokens, offset + start_token + n_tokens - token)
            offset_bytes, length_bytes = geometry.span(item.layer, offset, stop)
            local.append(self._staging.address + (token - start_token) * geometry.token_bytes)
            remote.append(destination.block_addresses[block] + offset_bytes)
            lengths.append(length_bytes)
            token += stop - offset
        self._resources.transport.write(self._session, local, remote, lengths)


class StagingArea:
    """Registered memory of one thread, through which rows pass on their way to or from the pool."""

    def __init__(self, resources: EngineResources, capacity_bytes: int) -> None:
        self._memory = np.zeros(max(capacity_bytes, resources.paged.geometry.layer_block_bytes), dtype=np.uint8)
        self.capacity_bytes = self._memory.nbytes
        self.address = self._memory.ctypes.data
        resources.transport.register(self.address, self.capacity_bytes)

    def rows(self, n_rows: int, row_bytes: int) -> np.ndarray:
        """The area's beginning as `[n_rows, row_bytes]` bytes."""
        return self._memory[: n_rows * row_bytes].reshape(n_rows, row_bytes)

"""Loading hit blocks into the device pool layer by layer, ahead of compute.

Local blocks come out of this engine's buffer, remote ones are pulled out of the decode engine's buffer: layer l + 1
moves while layer l computes (paper section 'layerwise prefill'; upstream `LayerWiseLoadCounter`).
"""

import functools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.prefill.room import PrefillRoom
from sglang_dualpath.prefill.stream import StagingArea
from sglang_dualpath.store.read_queue import BatchRead
from sglang_dualpath.transport.transport import TransferError

logger = logging.getLogger(__name__)

RESCUE_TIMEOUT_S = 30.0
"""How long a forward waits for the store after it has lost a peer."""


@dataclass(slots=True)
class LoadJob:
    """Tokens [start, start + len(slots)) of one request, to be loaded into `slots`; both page-aligned."""

    room: PrefillRoom
    start_token: int
    slots: torch.Tensor
    pieces: list["Piece"] = field(default_factory=list)


@dataclass(slots=True)
class Piece:
    """A run of tokens with one source: blocks of a local lease, or blocks in the peer's buffer (`lease` is None)."""

    first_token: int
    n_tokens: int
    slots: torch.Tensor
    lease: BlockLease | None
    lease_first_block: int


@dataclass(slots=True)
class LoadBatch:
    """The loads of one forward batch, under one index of the layer counter."""

    index: int
    jobs: list[LoadJob]


class LayerLoader:
    """One thread that loads batch after batch, each layer by layer."""

    def __init__(
        self,
        resources: EngineResources,
        staging_bytes: int,
        complete: Callable[[int, int], None],
        fail: Callable[[int, BaseException], None],
        end_job: Callable[[PrefillRoom], None],
    ) -> None:
        self._resources = resources
        self._staging = StagingArea(resources, staging_bytes)
        self._complete = complete
        self._fail = fail
        self._end_job = end_job
        self._batches: queue.SimpleQueue[LoadBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dualpath-layer-loader", daemon=True)
        self._thread.start()

    def submit(self, batch: LoadBatch) -> None:
        """Queue a batch; a job has begun on each of its rooms."""
        self._batches.put(batch)

    def close(self) -> None:
        """Finish what is queued, then stop."""
        self._batches.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._load(batch)
            except BaseException as error:
                logger.exception("loading hit blocks failed; the scheduler aborts the requests of this batch")
                self._fail(batch.index, error)
            finally:
                for job in batch.jobs:
                    for piece in job.pieces:
                        if piece.lease is not None:
                            piece.lease.release()
                    self._end_job(job.room)
                self._resources.wakeup.set()

    def _load(self, batch: LoadBatch) -> None:
        for job in batch.jobs:
            job.pieces = split_by_source(job, self._resources.paged.geometry.block_tokens)
        for layer in range(self._resources.paged.geometry.n_layers):
            for job in batch.jobs:
                self._load_layer(job, layer)
            self._resources.paged.synchronize()
            self._complete(batch.index, layer)
        self._resources.counters.add("loaded_tokens", sum(len(job.slots) for job in batch.jobs))

    def _load_layer(self, job: LoadJob, layer: int) -> None:
        for piece in list(job.pieces):
            if piece.lease is None:
                try:
                    self._pull(job, piece, layer)
                    continue
                except TransferError as error:
                    self._read_here_instead(job, piece, error)
            self._copy(piece, layer)

    def _copy(self, piece: Piece, layer: int) -> None:
        """Local source: buffer to pool."""
        assert piece.lease is not None
        geometry = self._resources.paged.geometry
        begin = piece.first_token - piece.lease_first_block * geometry.block_tokens
        stop = begin + piece.n_tokens
        first, last = begin // geometry.block_tokens, -(-stop // geometry.block_tokens)
        rows = piece.lease.layer_rows(layer, first, last)
        offset = begin - first * geometry.block_tokens
        self._resources.paged.scatter(layer, piece.slots, rows[offset : offset + piece.n_tokens])

    def _pull(self, job: LoadJob, piece: Piece, layer: int) -> None:
        """Remote source: the peer's buffer to staging to pool."""
        geometry = self._resources.paged.geometry
        destination = job.room.destination
        assert destination is not None
        step = self._staging.capacity_bytes // geometry.layer_block_bytes * geometry.block_tokens
        for done in range(0, piece.n_tokens, step):
            first_token = piece.first_token + done
            count = min(step, piece.n_tokens - done)
            local, remote, lengths = [], [], []
            token = first_token
            while token < first_token + count:
                block, offset = divmod(token, geometry.block_tokens)
                stop = min(geometry.block_tokens, offset + first_token + count - token)
                offset_bytes, length_bytes = geometry.span(layer, offset, stop)
                local.append(self._staging.address + (token - first_token) * geometry.token_bytes)
                remote.append(destination.block_addresses[block] + offset_bytes)
                lengths.append(length_bytes)
                token += stop - offset
            self._resources.transport.read(destination.session, local, remote, lengths)
            rows = self._staging.rows(count, geometry.token_bytes)
            self._resources.paged.scatter(layer, piece.slots[done : done + count], rows)
            self._resources.counters.add("pulled_bytes", count * geometry.token_bytes)

    def _read_here_instead(self, job: LoadJob, piece: Piece, error: TransferError) -> None:
        """The peer's buffer cannot be reached: read the piece's blocks from the store, whole, and go on from there."""
        self._resources.counters.fallback("peer_pull_failed", f"room {job.room.room}: {error}; reading the store here")
        geometry = self._resources.paged.geometry
        first = piece.first_token // geometry.block_tokens
        last = -(-(piece.first_token + piece.n_tokens) // geometry.block_tokens)
        request = job.room.request
        assert request is not None
        lease = self._resources.buffer.lease(last - first)
        if lease is None:
            raise error
        views = [lease.view(i) for i in range(lease.n_blocks)]
        # The read holds the lease by itself: it may hang for longer than a forward can wait.
        read = self._resources.read_queue.submit(
            request.keys[first:last], views, geometry.block_tokens, on_done=functools.partial(_release, lease.retain())
        )
        if not read.done.wait(RESCUE_TIMEOUT_S) or read.n_ok_prefix < lease.n_blocks:
            read.cancel()
            lease.release()
            raise error
        piece.lease, piece.lease_first_block = lease, first


def _release(lease: BlockLease, _: BatchRead) -> None:
    lease.release()


def split_by_source(job: LoadJob, block_tokens: int) -> list[Piece]:
    """Cut a job where its source changes; retains the lease of every local piece.

    The blocks before `remote_ready_blocks` are the peer's, the others lie in the room's own runs.
    """
    room = job.room
    pieces: list[Piece] = []
    token = job.start_token
    end = job.start_token + len(job.slots)
    with room.lock:
        remote_end = min(end, (room.remote_ready_blocks or 0) * block_tokens)
        if token < remote_end:
            pieces.append(Piece(token, remote_end - token, job.slots[: remote_end - job.start_token], None, 0))
            token = remote_end
        for run in sorted(room.runs, key=lambda run: run.first_block):
            run_end = min(end, (run.first_block + run.good_blocks) * block_tokens)
            if token < run.first_block * block_tokens or token >= run_end:
                continue
            slots = job.slots[token - job.start_token : run_end - job.start_token]
            pieces.append(Piece(token, run_end - token, slots, run.lease.retain(), run.first_block))
            token = run_end
    if token < end:
        for piece in pieces:
            if piece.lease is not None:
                piece.lease.release()
        raise RuntimeError(f"room {room.room}: tokens {token} to {end} are in no buffer")
    return pieces

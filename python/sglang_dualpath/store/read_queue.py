"""Batched, parallel reads off the event loop, and the count of tokens that wait for them.

Blocks are served in order of arrival, as by a NIC; several threads take them, so one read that hangs holds up one
thread, not its neighbours. Past the first block of a batch that is not OK the batch's rest is skipped: a prefix ends there.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.store.block_store import BlockStore, ReadOutcome
from sglang_dualpath.store.nic import NodeStorageNic

logger = logging.getLogger(__name__)


class BatchRead:
    """The reads of one request. `done` is set once no thread touches its destinations any more."""

    def __init__(
        self,
        keys: Sequence[BlockKey],
        destinations: Sequence[memoryview],
        tokens_per_block: int,
        on_done: "Callable[[BatchRead], None] | None",
    ) -> None:
        self.keys = keys
        self.destinations = destinations
        self.tokens_per_block = tokens_per_block
        self.outcomes: list[ReadOutcome] = [ReadOutcome.SKIPPED] * len(keys)
        self.done = threading.Event()
        self.next_block = 0
        self.in_flight = 0
        self.stopped = False
        self.on_done = on_done

    @property
    def n_ok_prefix(self) -> int:
        """Leading blocks that were read and are good."""
        for n, outcome in enumerate(self.outcomes):
            if outcome is not ReadOutcome.OK:
                return n
        return len(self.outcomes)

    def cancel(self) -> None:
        """Begin no further block; those in flight end first."""
        self.stopped = True


class ReadQueue:
    """`n_threads` readers of one store over one node's NIC.

    `on_idle` is called whenever the queue has run empty, with the tokens read since it was empty last and how long that took.
    """

    def __init__(
        self,
        store: BlockStore,
        nic: NodeStorageNic,
        n_threads: int,
        on_idle: Callable[[int, float], object] = lambda *_: None,
    ) -> None:
        self._on_idle = on_idle
        self._busy_since_s = 0.0
        self._read_tokens = 0
        self._store = store
        self._nic = nic
        self._batches: deque[BatchRead] = deque()
        self._condition = threading.Condition()
        self._queued_tokens = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"dualpath-read-{i}", daemon=True) for i in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queued_tokens(self) -> int:
        """Tokens of this process that wait to be read or are being read."""
        return self._queued_tokens

    def submit(
        self,
        keys: Sequence[BlockKey],
        destinations: Sequence[memoryview],
        tokens_per_block: int,
        on_done: Callable[[BatchRead], None] | None = None,
    ) -> BatchRead:
        """Queue the reads of `keys` into `destinations`; `on_done` is called once, on a reader's thread, at the end."""
        if len(keys) != len(destinations) or not keys:
            raise ValueError(f"{len(keys)} keys for {len(destinations)} destinations")
        batch = BatchRead(keys, destinations, tokens_per_block, on_done)
        with self._condition:
            if self._closing:
                raise RuntimeError("the read queue is closed")
            self._count(len(keys) * tokens_per_block)
            self._batches.append(batch)
            self._condition.notify(len(keys))
        return batch

    def close(self) -> None:
        """Cancel what waits, wait for what is in flight."""
        with self._condition:
            self._closing = True
            for batch in self._batches:
                batch.cancel()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._condition:
                work = self._take()
                while work is None:
                    if self._closing and not self._batches:
                        self._condition.notify_all()
                        return
                    self._condition.wait()
                    work = self._take()
            batch, index, ended = work
            if ended:
                self._end(batch)
                continue
            outcome = self._read(batch, index)
            if outcome is ReadOutcome.OK:
                with self._condition:
                    self._read_tokens += batch.tokens_per_block
            self._count(-batch.tokens_per_block)
            with self._condition:
                batch.outcomes[index] = outcome
                batch.in_flight -= 1
                if outcome is not ReadOutcome.OK:
                    batch.stopped = True
                self._condition.notify()

    def _take(self) -> tuple[BatchRead, int, bool] | None:
        """The next block to read, or a batch to end; None when there is nothing to do now. Called with the lock held."""
        for batch in self._batches:
            if not batch.stopped and batch.next_block < len(batch.keys):
                batch.next_block += 1
                batch.in_flight += 1
                return batch, batch.next_block - 1, False
            if batch.in_flight == 0:
                self._batches.remove(batch)
                return batch, 0, True
        return None

    def _read(self, batch: BatchRead, index: int) -> ReadOutcome:
        destination = batch.destinations[index]
        try:
            if not self._store.unlimited:
                self._nic.acquire(len(destination))
            return self._store.read(batch.keys[index], destination)
        except Exception:
            logger.exception("reading a block failed")
            return ReadOutcome.FAILED

    def _end(self, batch: BatchRead) -> None:
        self._count(-(len(batch.keys) - batch.next_block) * batch.tokens_per_block)
        batch.done.set()
        if batch.on_done is not None:
            try:
                batch.on_done(batch)
            except Exception:
                logger.exception("the end of a batch of reads was not taken well")

    def _count(self, delta_tokens: int) -> None:
        if delta_tokens:
            with self._condition:
                now_s = time.monotonic()
                if self._queued_tokens == 0:
                    self._busy_since_s = now_s
                self._queued_tokens += delta_tokens
                if self._queued_tokens == 0:
                    tokens, self._read_tokens = self._read_tokens, 0
                    self._on_idle(tokens, now_s - self._busy_since_s)
            self._nic.add_queued_tokens(delta_tokens)

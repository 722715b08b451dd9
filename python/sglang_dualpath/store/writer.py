"""Asynchronous persistence: blocks in leases go to the store on threads of their own, each key once."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable

from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.store.block_store import BlockStore, WriteOutcome

logger = logging.getLogger(__name__)

_Item = tuple[BlockKey, BlockLease, int]


class BlockWriter:
    """A bounded queue of blocks to write. It never blocks its callers: what does not fit is refused."""

    def __init__(
        self,
        store: BlockStore,
        n_threads: int,
        capacity_blocks: int,
        on_outcome: Callable[[WriteOutcome], None] | None = None,
    ) -> None:
        self._store = store
        self._items: queue.Queue[_Item | None] = queue.Queue(capacity_blocks)
        self._pending: dict[BlockKey, threading.Event] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._on_outcome = on_outcome
        self._threads = [
            threading.Thread(target=self._run, name=f"dualpath-write-{i}", daemon=True) for i in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_pending(self) -> int:
        """Blocks that wait to be written or are being written."""
        return len(self._pending)

    def submit(self, key: BlockKey, lease: BlockLease, index: int) -> bool:
        """Write the lease's `index`-th block under `key`; holds the lease meanwhile. False: the queue is full or closed."""
        with self._lock:
            if self._closed:
                return False
            if key in self._pending:
                return True
            lease.retain()
            try:
                self._items.put_nowait((key, lease, index))
            except queue.Full:
                lease.release()
                return False
            self._pending[key] = threading.Event()
        return True

    def wait_for(self, keys: Iterable[BlockKey], timeout_s: float) -> bool:
        """Wait until those of `keys` that are being written have landed; False when `timeout_s` ran out first."""
        deadline = time.monotonic() + timeout_s
        for key in keys:
            with self._lock:
                event = self._pending.get(key)
            if event is not None and not event.wait(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; False when `timeout_s` ran out first."""
        with self._lock:
            keys = list(self._pending)
        return self.wait_for(keys, timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Write what is queued, then stop; after `timeout_s` what a store that hangs has not taken is left behind."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Full):  # then every thread has work, and sees `_closed` after it
            for _ in self._threads:
                self._items.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._pending:
            logger.warning("%d blocks were not written within %.0f s and are left", len(self._pending), timeout_s)

    def _run(self) -> None:
        while not (self._closed and self._items.empty()):
            item = self._items.get()
            if item is None:
                return
            key, lease, index = item
            try:
                outcome = self._store.write(key, lease.view(index))
            except Exception:
                logger.exception("writing a block failed")
                outcome = WriteOutcome.FAILED
            lease.release()
            with self._lock:
                event = self._pending.pop(key)
            event.set()
            self._tell(outcome)

    def _tell(self, outcome: WriteOutcome) -> None:
        if self._on_outcome is None:
            return
        try:
            self._on_outcome(outcome)
        except Exception:
            logger.exception("the outcome of a write was not taken well")

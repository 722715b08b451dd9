"""The writer: each key once, never blocking its caller, holding a block's memory exactly until it is written."""

import queue
import threading
from collections.abc import Iterator

import pytest
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.buffer.block_buffer import BlockBuffer, BlockLease
from sglang_dualpath.store.block_store import WriteOutcome
from sglang_dualpath.store.writer import BlockWriter

from test.unit.engine_parts import WAIT_S

GEOMETRY = BlockGeometry(n_layers=1, token_bytes=1)


def key(n: int) -> BlockKey:
    """The key of block `n`."""
    return bytes([n]) * 32


class SlowStore:
    """A store that writes when it is let go, and remembers what."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun: queue.SimpleQueue[BlockKey] = queue.SimpleQueue()
        self.written: list[tuple[BlockKey, int]] = []
        self.failing = False

    def write(self, name: BlockKey, block: memoryview) -> WriteOutcome:
        """Write, once let go."""
        self.begun.put(name)
        assert self.let_go.wait(WAIT_S)
        if self.failing:
            raise RuntimeError("not as promised")
        self.written.append((name, block[0]))
        return WriteOutcome.WRITTEN


class Writes:
    """A writer of one thread and two places, over a slow store."""

    def __init__(self) -> None:
        self.store = SlowStore()
        self.outcomes: queue.SimpleQueue[WriteOutcome] = queue.SimpleQueue()
        self.writer = BlockWriter(self.store, 1, 2, self.outcomes.put)  # type: ignore[arg-type]
        self.buffer = BlockBuffer(GEOMETRY, 8 * GEOMETRY.full_block_bytes)

    def lease(self, n_blocks: int) -> BlockLease:
        """A lease whose blocks are filled with their index."""
        lease = self.buffer.lease(n_blocks)
        assert lease is not None
        for index in range(n_blocks):
            lease.array(index)[:] = index
        return lease


@pytest.fixture
def writes() -> Iterator[Writes]:
    """A writer that is closed at the end."""
    built = Writes()
    yield built
    built.store.let_go.set()
    built.writer.close()
    assert built.buffer.n_leases == 0


def test_a_block_is_written_under_its_key_and_its_memory_kept_until_then(writes: Writes) -> None:
    lease = writes.lease(3)
    assert writes.writer.submit(key(9), lease, 2)
    lease.release()
    assert writes.buffer.n_used_blocks == 3
    assert writes.writer.n_pending == 1
    writes.store.let_go.set()
    assert writes.writer.drain(WAIT_S)
    assert writes.store.written == [(key(9), 2)]
    assert writes.buffer.n_used_blocks == 0
    assert writes.writer.n_pending == 0
    assert writes.outcomes.get(timeout=WAIT_S) is WriteOutcome.WRITTEN


def test_a_key_that_is_being_written_is_not_written_again(writes: Writes) -> None:
    lease = writes.lease(2)
    assert writes.writer.submit(key(1), lease, 0)
    assert writes.writer.submit(key(1), lease, 1)
    assert writes.writer.n_pending == 1
    lease.release()
    writes.store.let_go.set()
    assert writes.writer.drain(WAIT_S)
    assert writes.store.written == [(key(1), 0)]


def test_what_does_not_fit_is_refused_and_not_held(writes: Writes) -> None:
    lease = writes.lease(1)
    assert writes.writer.submit(key(1), lease, 0)
    assert writes.store.begun.get(timeout=WAIT_S) == key(1)
    assert writes.writer.submit(key(2), lease, 0)
    assert writes.writer.submit(key(3), lease, 0)
    assert not writes.writer.submit(key(4), lease, 0)
    assert writes.writer.n_pending == 3
    lease.release()
    writes.store.let_go.set()
    assert writes.writer.drain(WAIT_S)
    assert [name for name, _ in writes.store.written] == [key(1), key(2), key(3)]
    assert writes.writer.wait_for([key(4)], 0.0)


def test_waiting_ends_when_the_keys_have_landed(writes: Writes) -> None:
    lease = writes.lease(1)
    writes.writer.submit(key(1), lease, 0)
    lease.release()
    assert not writes.writer.wait_for([key(1)], 0.0)
    assert writes.writer.wait_for([key(2), key(3)], 0.0)
    writes.store.let_go.set()
    assert writes.writer.wait_for([key(2), key(1)], WAIT_S)
    assert writes.store.written == [(key(1), 0)]


def test_a_drain_that_runs_out_of_time_says_so(writes: Writes) -> None:
    lease = writes.lease(1)
    writes.writer.submit(key(1), lease, 0)
    lease.release()
    assert not writes.writer.drain(0.0)


def test_a_store_that_raises_is_a_failed_write_and_the_next_is_tried(writes: Writes) -> None:
    writes.store.failing = True
    writes.store.let_go.set()
    lease = writes.lease(1)
    writes.writer.submit(key(1), lease, 0)
    assert writes.outcomes.get(timeout=WAIT_S) is WriteOutcome.FAILED
    writes.store.failing = False
    assert writes.writer.drain(WAIT_S)
    writes.writer.submit(key(1), lease, 0)
    assert writes.outcomes.get(timeout=WAIT_S) is WriteOutcome.WRITTEN
    lease.release()


def test_closing_writes_what_is_queued(writes: Writes) -> None:
    lease = writes.lease(2)
    writes.writer.submit(key(1), lease, 0)
    writes.writer.submit(key(2), lease, 1)
    lease.release()
    writes.store.let_go.set()
    writes.writer.close()
    assert writes.store.written == [(key(1), 0), (key(2), 1)]


def test_after_closing_nothing_is_taken(writes: Writes) -> None:
    writes.writer.close()
    lease = writes.lease(1)
    assert not writes.writer.submit(key(1), lease, 0)
    assert writes.writer.n_pending == 0
    lease.release()


def test_an_outcome_that_is_not_taken_well_ends_no_writer(writes: Writes) -> None:
    heard: list[WriteOutcome] = []

    def badly(outcome: WriteOutcome) -> None:
        heard.append(outcome)
        raise RuntimeError("not taken well")

    writer = BlockWriter(writes.store, 1, 2, badly)  # type: ignore[arg-type]
    writes.store.let_go.set()
    lease = writes.lease(1)
    for name in (key(1), key(2)):
        assert writer.submit(name, lease, 0)
        assert writer.drain(WAIT_S)
    lease.release()
    writer.close()
    assert heard == [WriteOutcome.WRITTEN, WriteOutcome.WRITTEN]


def test_closing_over_a_store_that_hangs_ends_and_says_what_is_left(
    writes: Writes, caplog: pytest.LogCaptureFixture
) -> None:
    lease = writes.lease(1)
    assert writes.writer.submit(key(1), lease, 0)
    assert writes.store.begun.get(timeout=WAIT_S) == key(1)
    for name in (key(2), key(3)):
        assert writes.writer.submit(name, lease, 0)
    lease.release()
    writes.writer.close(timeout_s=0.1)
    assert "3 blocks were not written" in caplog.text
    writes.store.let_go.set()
    assert writes.writer.drain(WAIT_S)
    assert [name for name, _ in writes.store.written] == [key(1), key(2), key(3)]

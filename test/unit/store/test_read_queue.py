"""The read queue: in order, stopping at the first bad block, and never held up by one read that hangs."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.store.block_store import ReadOutcome
from sglang_dualpath.store.nic import NodeStorageNic
from sglang_dualpath.store.read_queue import BatchRead, ReadQueue

from test.unit.engine_parts import WAIT_S

OK = ReadOutcome.OK
SKIPPED = ReadOutcome.SKIPPED
BLOCK_TOKENS = 64


def key(n: int) -> BlockKey:
    """The key of block `n`."""
    return bytes([n]) * 32


class ScriptedStore:
    """A store whose blocks answer as told; a held one answers when it is let go."""

    unlimited = True

    def __init__(self) -> None:
        self.answers: dict[BlockKey, ReadOutcome | Exception] = {}
        self.held: dict[BlockKey, threading.Event] = {}
        self.started: queue.SimpleQueue[BlockKey] = queue.SimpleQueue()

    def hold(self, name: BlockKey) -> threading.Event:
        """Let a block's reads wait for the event."""
        return self.held.setdefault(name, threading.Event())

    def read(self, name: BlockKey, into: memoryview) -> ReadOutcome:
        """Answer as told; a good block is its number, over and over."""
        self.started.put(name)
        if name in self.held:
            assert self.held[name].wait(WAIT_S)
        answer = self.answers.get(name, OK)
        if isinstance(answer, Exception):
            raise answer
        into[:] = name[:1] * len(into)
        return answer

    def n_started(self) -> int:
        """How many reads have begun."""
        return self.started.qsize()


class Reads:
    """A queue over a scripted store."""

    def __init__(self, directory: Path, n_threads: int) -> None:
        self.store = ScriptedStore()
        self.nic = NodeStorageNic("node", None, directory)
        self.queue = ReadQueue(self.store, self.nic, n_threads)  # type: ignore[arg-type]

    def submit(self, *blocks: int) -> BatchRead:
        """Queue the reads of blocks by number."""
        views = [memoryview(bytearray(8)) for _ in blocks]
        return self.queue.submit([key(n) for n in blocks], views, BLOCK_TOKENS)

    def next_started(self) -> BlockKey:
        """The key whose read begins next."""
        return self.store.started.get(timeout=WAIT_S)

    def close(self) -> None:
        """Let everything go and stop."""
        for event in self.store.held.values():
            event.set()
        self.queue.close()
        assert not [thread for thread in self.queue._threads if thread.is_alive()]
        self.nic.close()


def wait(batch: BatchRead) -> None:
    """Wait for the end of a batch."""
    assert batch.done.wait(WAIT_S)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Reads]:
    """One reader."""
    reads = Reads(tmp_path, 1)
    yield reads
    reads.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Reads]:
    """Two readers."""
    reads = Reads(tmp_path, 2)
    yield reads
    reads.close()


def test_blocks_land_in_their_destinations(two: Reads) -> None:
    batch = two.submit(1, 2, 3)
    wait(batch)
    assert batch.outcomes == [OK] * 3
    assert batch.n_ok_prefix == 3
    assert [bytes(view) for view in batch.destinations] == [key(n)[:8] for n in (1, 2, 3)]


def test_one_reader_serves_in_order_of_arrival(one: Reads) -> None:
    batches = [one.submit(1, 2), one.submit(3), one.submit(4, 5)]
    for batch in batches:
        wait(batch)
    assert [one.next_started() for _ in range(5)] == [key(n) for n in range(1, 6)]


def test_several_readers_share_one_batch(two: Reads) -> None:
    events = [two.store.hold(key(n)) for n in (1, 2)]
    batch = two.submit(1, 2)
    assert {two.next_started(), two.next_started()} == {key(1), key(2)}
    for event in events:
        event.set()
    wait(batch)


@pytest.mark.parametrize("bad", [ReadOutcome.MISSING, ReadOutcome.CORRUPT, ReadOutcome.TRUNCATED, ReadOutcome.FAILED])
def test_past_the_first_bad_block_the_rest_is_skipped(one: Reads, bad: ReadOutcome) -> None:
    one.store.answers[key(2)] = bad
    batch = one.submit(1, 2, 3, 4)
    wait(batch)
    assert batch.outcomes == [OK, bad, SKIPPED, SKIPPED]
    assert batch.n_ok_prefix == 1
    assert one.store.n_started() == 2


def test_a_store_that_raises_is_a_failed_read(one: Reads) -> None:
    one.store.answers[key(1)] = RuntimeError("not as promised")
    batch = one.submit(1, 2)
    wait(batch)
    assert batch.outcomes == [ReadOutcome.FAILED, SKIPPED]
    wait(one.submit(3))


def test_a_bad_block_of_one_batch_is_nothing_to_the_next(one: Reads) -> None:
    one.store.answers[key(1)] = ReadOutcome.MISSING
    first, second = one.submit(1, 2), one.submit(3)
    wait(first)
    wait(second)
    assert second.outcomes == [OK]


def test_a_read_that_hangs_holds_up_its_own_batch_only(two: Reads) -> None:
    event = two.store.hold(key(1))
    hung = two.submit(1)
    for n in range(2, 10):
        wait(two.submit(n))
    assert not hung.done.is_set()
    event.set()
    wait(hung)
    assert hung.outcomes == [OK]


def test_a_cancelled_batch_ends_once_its_reads_in_flight_have(one: Reads) -> None:
    event = one.store.hold(key(1))
    batch = one.submit(1, 2, 3)
    one.next_started()
    batch.cancel()
    assert not batch.done.is_set()
    event.set()
    wait(batch)
    assert batch.outcomes == [OK, SKIPPED, SKIPPED]
    assert one.store.n_started() == 0


def test_a_batch_cancelled_before_its_turn_reads_nothing(one: Reads) -> None:
    event = one.store.hold(key(1))
    first, second = one.submit(1), one.submit(2)
    second.cancel()
    event.set()
    wait(first)
    wait(second)
    assert second.outcomes == [SKIPPED]


def test_tokens_are_queued_until_read_and_skipped_ones_are_not(one: Reads) -> None:
    event = one.store.hold(key(1))
    one.store.answers[key(2)] = ReadOutcome.MISSING
    first, second = one.submit(1), one.submit(2, 3, 4)
    one.next_started()
    assert one.queue.queued_tokens == one.nic.node_queued_tokens() == 4 * BLOCK_TOKENS
    event.set()
    wait(first)
    wait(second)
    assert one.queue.queued_tokens == one.nic.node_queued_tokens() == 0


def test_when_a_batch_is_done_its_tokens_are_no_longer_queued(two: Reads) -> None:
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(50):
        views = [memoryview(bytearray(8)) for _ in range(4)]
        batch = two.queue.submit(
            [key(n) for n in range(4)], views, BLOCK_TOKENS, lambda _: seen.put(two.nic.node_queued_tokens())
        )
        wait(batch)
        assert two.queue.queued_tokens == 0
        assert seen.get(timeout=WAIT_S) == 0


def test_the_end_is_told_once_even_if_it_is_not_taken_well(one: Reads) -> None:
    told: queue.SimpleQueue[BatchRead] = queue.SimpleQueue()

    def taken_badly(batch: BatchRead) -> None:
        told.put(batch)
        raise RuntimeError("not taken well")

    batch = one.queue.submit([key(1)], [memoryview(bytearray(8))], BLOCK_TOKENS, taken_badly)
    assert told.get(timeout=WAIT_S) is batch
    wait(one.submit(2))
    assert told.empty()


@pytest.mark.parametrize(("n_keys", "n_destinations"), [(0, 0), (2, 1), (1, 2)])
def test_keys_and_destinations_pair_up(one: Reads, n_keys: int, n_destinations: int) -> None:
    with pytest.raises(ValueError, match=f"{n_keys} keys for {n_destinations}"):
        one.queue.submit([key(1)] * n_keys, [memoryview(bytearray(8))] * n_destinations, BLOCK_TOKENS)


def test_closing_cancels_what_waits_and_ends_every_reader(tmp_path: Path) -> None:
    reads = Reads(tmp_path, 4)
    event = reads.store.hold(key(1))
    hung, waiting = reads.submit(1), reads.submit(2, 3)
    wait(waiting)
    waiting = reads.submit(1, 1, 1, 1, 4)
    for _ in range(3):
        reads.next_started()
    closer = threading.Thread(target=reads.queue.close)
    closer.start()
    assert not hung.done.is_set()
    event.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert [thread for thread in reads.queue._threads if thread.is_alive()] == []
    assert hung.done.is_set()
    assert waiting.done.is_set()
    assert reads.queue.queued_tokens == reads.nic.node_queued_tokens() == 0
    reads.close()


def test_a_closed_queue_takes_nothing_and_counts_nothing(tmp_path: Path) -> None:
    reads = Reads(tmp_path, 1)
    reads.queue.close()
    with pytest.raises(RuntimeError, match="closed"):
        reads.submit(1)
    assert reads.nic.node_queued_tokens() == 0
    reads.close()


def test_a_limited_store_reads_over_the_nic_and_an_exempt_one_does_not(one: Reads) -> None:
    wait(one.submit(1))
    assert one.nic.bytes_read == 0
    one.store.unlimited = False
    wait(one.submit(2))
    assert one.nic.bytes_read == 8


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_fails_every_batch_ends_with_its_good_prefix(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reads = Reads(tmp_path_factory.mktemp("node"), data.draw(st.integers(1, 4)))
    bad = data.draw(st.sets(st.integers(0, 20)))
    reads.store.answers = {key(n): ReadOutcome.MISSING for n in bad}
    wanted = data.draw(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), max_size=6))
    batches = [reads.submit(*blocks) for blocks in wanted]
    for blocks, batch in zip(wanted, batches, strict=True):
        wait(batch)
        expected = next((i for i, n in enumerate(blocks) if n in bad), len(blocks))
        assert batch.n_ok_prefix == expected
    assert reads.queue.queued_tokens == reads.nic.node_queued_tokens() == 0
    reads.close()


def test_when_it_has_run_empty_it_tells_how_much_it_read_meanwhile(tmp_path: Path) -> None:
    store = ScriptedStore()
    store.answers[key(3)] = ReadOutcome.CORRUPT
    told: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
    nic = NodeStorageNic("node", None, tmp_path)
    reads = ReadQueue(store, nic, 1, lambda tokens, elapsed_s: told.put((tokens, elapsed_s)))  # type: ignore[arg-type]
    try:
        for blocks, good in (((1, 2), 2), ((3, 4), 0)):
            wait(reads.submit([key(n) for n in blocks], [memoryview(bytearray(8)) for _ in blocks], BLOCK_TOKENS))
            tokens, elapsed_s = told.get(timeout=WAIT_S)
            assert tokens == good * BLOCK_TOKENS
            assert elapsed_s >= 0
        assert told.empty()
    finally:
        reads.close()
        nic.close()

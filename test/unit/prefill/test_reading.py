"""From 'destination known' to 'eligible': who reads what, and how a plan that fails shrinks to path A, then to compute."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange.messages import Destination
from sglang_dualpath.prefill.reading import PromptReader
from sglang_dualpath.prefill.room import PrefillRequest, PrefillRoom

from test.unit.engine_parts import (
    BLOCK_TOKENS,
    WAIT_S,
    HeldStore,
    assert_nothing_held,
    damage,
    make_resources,
    persist,
    prompt_chain,
)


class Prefill:
    """A reader with rooms, as the manager would drive it."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        self.eligible: list[int] = []
        self._changed = threading.Condition()
        self.reader = PromptReader(resources, self._on_eligible, self._end_job)

    def room(self, n_blocks: int, *, hit: int, decode_reads: int = 0, room_id: int = 1, seed: int = 0) -> PrefillRoom:
        """A room whose prompt has `n_blocks` full blocks and one token more; not begun."""
        chain = prompt_chain(self.resources.namespace, n_blocks * BLOCK_TOKENS + 1, seed)
        room = PrefillRoom(room_id, 0.0)
        room.request = PrefillRequest(f"rid-{room_id}", chain.n_tokens, chain.keys)
        room.destination = Destination(
            room=room_id,
            session="peer",
            endpoint="h",
            port=1,
            aux_index=0,
            prompt_tokens=chain.n_tokens,
            block_addresses=[0] * (n_blocks + 1),
            hit_blocks=hit,
            decode_read_blocks=decode_reads,
            last_hit_key=chain.keys[hit - 1] if hit else b"",
        )
        return room

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait for background threads."""
        with self._changed:
            assert self._changed.wait_for(happened, WAIT_S)

    def wait_eligible(self, room: PrefillRoom) -> None:
        """Wait until the room may be computed."""
        self.wait_until(lambda: room.room in self.eligible)

    def fallbacks(self) -> dict[str, int]:
        """What has been counted."""
        return self.resources.counters.snapshot()["fallbacks"]

    def close(self, room: PrefillRoom) -> None:
        """What the manager does when upstream lets go of a request: its jobs end first."""
        with room.lock:
            room.cleared = True
        self.reader.retry_waiting()
        self.wait_until(lambda: room.jobs == 0)
        room.release_runs()

    def _on_eligible(self, room: PrefillRoom) -> None:
        with self._changed:
            self.eligible.append(room.room)
            self._changed.notify_all()

    def _end_job(self, room: PrefillRoom) -> None:
        with self._changed:
            room.end_job()
            self._changed.notify_all()


@pytest.fixture
def prefill(resources: EngineResources) -> Prefill:
    """A reader over a file store and a buffer of 16 blocks."""
    return Prefill(resources)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Prefill, HeldStore]]:
    """A reader whose store answers only when let go."""
    built = make_resources(tmp_path)
    store = HeldStore(built.store)
    built.read_queue._store = store
    yield Prefill(built), store
    store.let_go.set()
    built.close()


def test_without_a_hit_a_request_is_eligible_at_once(prefill: Prefill) -> None:
    room = prefill.room(3, hit=0)
    prefill.reader.begin(room)
    assert prefill.eligible == [1]
    assert room.usable_hit_blocks == 0
    assert prefill.fallbacks() == {}
    assert_nothing_held(prefill.resources)


@pytest.mark.parametrize("missing", ["request", "destination"])
def test_nothing_begins_before_both_halves_of_a_request_are_known(prefill: Prefill, missing: str) -> None:
    room = prefill.room(3, hit=0)
    setattr(room, missing, None)
    prefill.reader.begin(room)
    assert not room.started
    assert prefill.eligible == []


def test_a_request_begins_once(prefill: Prefill) -> None:
    room = prefill.room(2, hit=2)
    assert room.request is not None
    persist(prefill.resources, room.request.keys)
    for _ in range(3):
        prefill.reader.begin(room)
    prefill.wait_eligible(room)
    assert prefill.eligible == [1]
    assert len(room.runs) == 1
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_path_a_puts_the_stored_blocks_into_this_buffer(prefill: Prefill) -> None:
    room = prefill.room(4, hit=3)
    assert room.request is not None
    blocks = persist(prefill.resources, room.request.keys)
    prefill.reader.begin(room)
    prefill.wait_eligible(room)
    assert room.usable_hit_blocks == 3
    assert room.remote_ready_blocks == 0
    (run,) = room.runs
    assert (run.first_block, run.good_blocks) == (0, 3)
    for index in range(3):
        assert np.array_equal(run.lease.array(index), blocks[index])
    assert prefill.resources.counters.snapshot()["counts"]["read_blocks"] == 3
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_path_b_waits_for_the_decode_side_and_reads_nothing_here(prefill: Prefill) -> None:
    room = prefill.room(4, hit=3, decode_reads=3)
    prefill.reader.begin(room)
    assert prefill.eligible == []
    prefill.reader.remote_progress(room, 3)
    assert prefill.eligible == [1]
    assert room.usable_hit_blocks == 3
    assert room.runs == []
    assert prefill.fallbacks() == {}


def test_progress_that_came_before_the_request_counts(prefill: Prefill) -> None:
    room = prefill.room(4, hit=3, decode_reads=3)
    room.early_progress_blocks = 3
    prefill.reader.begin(room)
    assert prefill.eligible == [1]
    assert room.usable_hit_blocks == 3


def test_a_second_progress_changes_nothing(prefill: Prefill) -> None:
    room = prefill.room(4, hit=3, decode_reads=3)
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 3)
    prefill.reader.remote_progress(room, 0)
    assert prefill.eligible == [1]
    assert room.remote_ready_blocks == 3


def test_more_progress_than_was_promised_counts_as_what_was_promised(prefill: Prefill) -> None:
    room = prefill.room(4, hit=3, decode_reads=3)
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 9)
    assert room.usable_hit_blocks == 3


def test_what_the_decode_side_could_not_read_is_read_here(prefill: Prefill) -> None:
    room = prefill.room(5, hit=4, decode_reads=4)
    assert room.request is not None
    blocks = persist(prefill.resources, room.request.keys)
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 1)
    prefill.wait_eligible(room)
    assert room.usable_hit_blocks == 4
    assert room.remote_ready_blocks == 1
    (run,) = room.runs
    assert (run.first_block, run.good_blocks) == (1, 3)
    assert np.array_equal(run.lease.array(0), blocks[1])
    assert prefill.fallbacks() == {"decode_read_failed": 1}
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_what_neither_side_could_read_is_computed(prefill: Prefill, tmp_path: Path) -> None:
    room = prefill.room(5, hit=4, decode_reads=4)
    assert room.request is not None
    persist(prefill.resources, room.request.keys)
    damage(tmp_path, room.request.keys[2])
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 1)
    prefill.wait_eligible(room)
    assert room.usable_hit_blocks == 2
    assert prefill.fallbacks() == {"decode_read_failed": 1, "block_corrupt": 1, "prefill_read_failed": 1}
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_a_split_is_eligible_when_both_sides_have_read(held: tuple[Prefill, HeldStore]) -> None:
    prefill, store = held
    room = prefill.room(5, hit=4, decode_reads=2)
    assert room.request is not None
    persist(prefill.resources, room.request.keys)
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 2)
    assert prefill.eligible == []
    store.let_go.set()
    prefill.wait_eligible(room)
    assert room.usable_hit_blocks == 4
    (run,) = room.runs
    assert (run.first_block, run.good_blocks) == (2, 2)
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_blocks_keyed_differently_on_both_sides_are_computed(prefill: Prefill) -> None:
    room = prefill.room(3, hit=2)
    assert room.destination is not None
    room.destination = prefill.room(3, hit=2, seed=1).destination
    prefill.reader.begin(room)
    assert prefill.eligible == [1]
    assert room.usable_hit_blocks == 0
    assert prefill.fallbacks() == {"namespace_mismatch": 1}


def test_a_promise_of_the_decode_side_for_other_keys_is_not_used(prefill: Prefill) -> None:
    room = prefill.room(3, hit=2)
    room.destination = prefill.room(3, hit=2, decode_reads=2, seed=1).destination
    prefill.reader.begin(room)
    prefill.reader.remote_progress(room, 2)
    assert prefill.eligible == [1]
    assert room.usable_hit_blocks == 0
    assert prefill.fallbacks() == {"namespace_mismatch": 1}


def test_more_hits_than_the_prompt_has_blocks_are_not_believed(prefill: Prefill) -> None:
    room = prefill.room(2, hit=2)
    room.destination = prefill.room(6, hit=6).destination
    prefill.reader.begin(room)
    assert room.usable_hit_blocks == 0
    assert prefill.fallbacks() == {"namespace_mismatch": 1}


def test_a_hit_larger_than_the_buffer_is_read_as_far_as_it_goes(prefill: Prefill) -> None:
    room = prefill.room(20, hit=20)
    assert room.request is not None
    persist(prefill.resources, room.request.keys)
    prefill.reader.begin(room)
    prefill.wait_eligible(room)
    assert room.usable_hit_blocks == prefill.resources.buffer.capacity_blocks == 16
    assert prefill.fallbacks() == {"prefill_buffer_full": 1}
    prefill.close(room)
    assert_nothing_held(prefill.resources)


def test_reads_wait_for_buffer_in_order_of_arrival(prefill: Prefill) -> None:
    rooms = [prefill.room(9, hit=9, room_id=i, seed=i) for i in range(3)]
    for room in rooms:
        assert room.request is not None
        persist(prefill.resources, room.request.keys)
        prefill.reader.begin(room)
    prefill.wait_eligible(rooms[0])
    assert prefill.reader.n_waiting == 2
    prefill.reader.retry_waiting()
    assert prefill.reader.n_waiting == 2
    for done, waiting in ((0, 1), (1, 0)):
        prefill.close(rooms[done])
        prefill.reader.retry_waiting()
        prefill.wait_eligible(rooms[done + 1])
        assert prefill.reader.n_waiting == waiting
    prefill.close(rooms[2])
    assert prefill.eligible == [0, 1, 2]
    assert_nothing_held(prefill.resources)


def test_a_request_that_ends_while_it_waits_for_buffer_leaves_nothing(prefill: Prefill) -> None:
    lease = prefill.resources.buffer.lease(16)
    assert lease is not None
    room = prefill.room(4, hit=4)
    prefill.reader.begin(room)
    assert prefill.reader.n_waiting == 1
    assert room.jobs == 1
    room.failure = "aborted"
    prefill.reader.retry_waiting()
    assert prefill.reader.n_waiting == 0
    assert room.jobs == 0
    assert prefill.eligible == []
    lease.release()
    assert_nothing_held(prefill.resources)


def test_the_buffer_is_kept_until_a_read_that_was_aborted_has_ended(held: tuple[Prefill, HeldStore]) -> None:
    prefill, store = held
    room = prefill.room(4, hit=4)
    assert room.request is not None
    persist(prefill.resources, room.request.keys)
    prefill.reader.begin(room)
    assert store.reading.wait(WAIT_S)
    (run,) = room.runs
    room.failure = "aborted"
    assert run.read is not None
    run.read.cancel()
    room.release_runs()
    assert prefill.resources.buffer.n_used_blocks == 4
    store.let_go.set()
    prefill.wait_until(lambda: room.jobs == 0)
    assert prefill.eligible == []
    assert_nothing_held(prefill.resources)


def test_a_request_that_has_ended_does_not_begin(prefill: Prefill) -> None:
    room = prefill.room(4, hit=4)
    room.cleared = True
    prefill.reader.begin(room)
    assert not room.started
    assert_nothing_held(prefill.resources)


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_missing_the_usable_hit_is_what_can_be_had(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    n_blocks = 6
    hit = data.draw(st.integers(0, n_blocks), label="hit")
    promised = data.draw(st.integers(0, hit), label="decode reads")
    ready = data.draw(st.integers(0, promised), label="ready")
    present = data.draw(st.sets(st.integers(0, n_blocks - 1)), label="present")
    prefill = Prefill(make_resources(tmp_path_factory.mktemp("engine")))
    room = prefill.room(n_blocks, hit=hit, decode_reads=promised)
    assert room.request is not None
    persist(prefill.resources, [key for index, key in enumerate(room.request.keys) if index in present])
    prefill.reader.begin(room)
    if promised:
        prefill.reader.remote_progress(room, ready)
    prefill.wait_eligible(room)
    readable = present & set(range(hit)) | set(range(ready))
    expected = 0
    while expected in readable:
        expected += 1
    assert room.usable_hit_blocks == expected
    prefill.close(room)
    assert_nothing_held(prefill.resources)
    prefill.resources.close()

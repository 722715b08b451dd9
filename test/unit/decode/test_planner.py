"""Planning one request: what is cached, which side reads it, and what the prefill engine is told of it."""

import queue
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sglang_dualpath.decode.planner import ReadPlanner
from sglang_dualpath.decode.room import DecodeRoom
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange.messages import Destination, Message, ReadProgress, decode, encode

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


class Decode:
    """A planner, and the prefill engine's ear."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        self.planner = ReadPlanner(resources, "10.0.0.2", 9000)
        self.sent: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[str] = queue.SimpleQueue()

    def room(self, n_tokens: int, side: str | float | None = None, room_id: int = 1) -> DecodeRoom:
        """A room whose lease is there."""
        chain = prompt_chain(self.resources.namespace, n_tokens, room_id)
        share = {"prefill": 0.0, "decode": 1.0}[side] if isinstance(side, str) else side
        room = DecodeRoom(room_id, f"rid-{room_id}", "h:1", n_tokens, chain, share)
        room.lease = self.resources.buffer.lease(-(-n_tokens // BLOCK_TOKENS))
        assert room.lease is not None
        return room

    def plan(self, room: DecodeRoom) -> Destination:
        """Plan a room; what the prefill engine is told first, after the wire."""
        self.planner.submit(room, 5, self._send, self.failures.put)
        message = decode(encode(self.sent.get(timeout=WAIT_S)))
        assert isinstance(message, Destination)
        return message

    def progress(self) -> ReadProgress:
        """What the prefill engine is told next."""
        message = decode(encode(self.sent.get(timeout=WAIT_S)))
        assert isinstance(message, ReadProgress)
        return message

    def fallbacks(self) -> dict[str, int]:
        """What has been counted."""
        return self.resources.counters.snapshot()["fallbacks"]

    def _send(self, message: Message) -> bool:
        self.sent.put(message)
        return True

    def close(self, *rooms: DecodeRoom) -> None:
        """End rooms and planner; nothing stays held."""
        self.planner._threads.shutdown(wait=True)
        for room in rooms:
            if room.read is not None:
                assert room.read.done.wait(WAIT_S)
            self.planner.settle(room)
            room.release()
        assert self.sent.empty()
        assert self.failures.empty()
        assert_nothing_held(self.resources)


@pytest.fixture
def side(resources: EngineResources) -> Decode:
    """A planner with `--kv-path dual`."""
    return Decode(resources)


@pytest.fixture
def prefill_only(tmp_path: Path) -> Iterator[Decode]:
    """A planner with `--kv-path prefill`."""
    built = make_resources(tmp_path, role="decode", path="prefill")
    yield Decode(built)
    built.close()


def test_the_prefill_engine_is_told_where_every_block_of_the_prompt_goes(side: Decode) -> None:
    room = side.room(130)
    message = side.plan(room)
    lease = room.lease
    assert lease is not None
    assert message == Destination(
        room=1,
        session=side.resources.transport.session,
        endpoint="10.0.0.2",
        port=9000,
        aux_index=5,
        prompt_tokens=130,
        block_addresses=[lease.address(i) for i in range(3)],
        hit_blocks=0,
        decode_read_blocks=0,
        last_hit_key=b"",
    )
    side.close(room)
    assert room.sent


def test_a_plan_for_the_decode_side_reads_here_and_tells_when_it_is_done(side: Decode) -> None:
    room = side.room(3 * BLOCK_TOKENS + 1, "decode")
    blocks = persist(side.resources, room.chain.keys)
    message = side.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (3, 3)
    assert message.last_hit_key == room.chain.keys[2]
    assert side.progress() == ReadProgress(room=1, ready_blocks=3)
    assert room.ready_blocks == 3
    lease = room.lease
    assert lease is not None
    for index, block in enumerate(blocks):
        assert np.array_equal(lease.array(index), block)
    side.close(room)


def test_a_plan_for_the_prefill_side_reads_nothing_here(side: Decode) -> None:
    room = side.room(3 * BLOCK_TOKENS + 1, "prefill")
    persist(side.resources, room.chain.keys)
    message = side.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (3, 0)
    assert room.read is None
    assert room.ready_blocks == 0
    side.close(room)


def test_the_last_token_is_always_computed(side: Decode) -> None:
    room = side.room(2 * BLOCK_TOKENS, "prefill")
    persist(side.resources, room.chain.keys)
    assert side.plan(room).hit_blocks == 1
    side.close(room)


@pytest.mark.parametrize("n_tokens", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS])
def test_a_prompt_without_a_usable_block_has_no_hit(side: Decode, n_tokens: int) -> None:
    room = side.room(n_tokens, "decode")
    persist(side.resources, room.chain.keys)
    message = side.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (0, 0)
    side.close(room)


def test_a_hit_ends_at_the_first_block_that_is_not_stored(side: Decode) -> None:
    room = side.room(4 * BLOCK_TOKENS + 1, "decode")
    persist(side.resources, [room.chain.keys[0], room.chain.keys[2], room.chain.keys[3]])
    message = side.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (1, 1)
    assert side.progress().ready_blocks == 1
    side.close(room)


def test_a_bad_block_ends_the_progress_before_it(side: Decode, tmp_path: Path) -> None:
    room = side.room(4 * BLOCK_TOKENS + 1, "decode")
    persist(side.resources, room.chain.keys)
    damage(tmp_path, room.chain.keys[2])
    assert side.plan(room).decode_read_blocks == 4
    assert side.progress().ready_blocks == 2
    assert side.fallbacks() == {"block_corrupt": 1}
    side.close(room)


def test_without_a_plan_the_idle_decode_side_reads(side: Decode) -> None:
    room = side.room(2 * BLOCK_TOKENS + 1)
    persist(side.resources, room.chain.keys)
    assert side.plan(room).decode_read_blocks == 2
    assert side.progress().ready_blocks == 2
    side.close(room)


def test_without_a_plan_the_shorter_of_the_two_queues_reads(side: Decode) -> None:
    first, second, third = (side.room(2 * BLOCK_TOKENS + 1, room_id=i) for i in (1, 2, 3))
    for room in (first, second, third):
        persist(side.resources, room.chain.keys)
    side.resources.nic.add_queued_tokens(100)
    assert side.plan(first).decode_read_blocks == 0
    assert side.plan(second).decode_read_blocks == 2
    assert side.progress().room == 2
    side.planner.settle(first)
    assert side.plan(third).decode_read_blocks == 0
    side.resources.nic.add_queued_tokens(-100)
    side.close(first, second, third)


def test_path_prefill_reads_nothing_here_even_without_a_plan(prefill_only: Decode) -> None:
    room = prefill_only.room(2 * BLOCK_TOKENS + 1)
    persist(prefill_only.resources, room.chain.keys)
    message = prefill_only.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (2, 0)
    assert prefill_only.fallbacks() == {}
    prefill_only.close(room)


@pytest.mark.parametrize(("share", "here"), [(0.25, 1), (0.5, 2), (0.8, 3), (0.1, 0), (0.9, 4)])
def test_a_split_plan_reads_the_leading_blocks_of_its_share_here(side: Decode, share: float, here: int) -> None:
    room = side.room(4 * BLOCK_TOKENS + 1, share)
    persist(side.resources, room.chain.keys)
    message = side.plan(room)
    assert (message.hit_blocks, message.decode_read_blocks) == (4, here)
    if here:
        assert side.progress() == ReadProgress(room=1, ready_blocks=here)
    kind = {0: "prefill", 4: "decode"}.get(here, "split")
    assert side.resources.counters.snapshot()["counts"][f"planned_{kind}_reads"] == 1
    side.close(room)


def test_path_prefill_counts_a_plan_it_cannot_honour(prefill_only: Decode) -> None:
    room = prefill_only.room(2 * BLOCK_TOKENS + 1, "decode")
    persist(prefill_only.resources, room.chain.keys)
    assert prefill_only.plan(room).decode_read_blocks == 0
    assert prefill_only.fallbacks() == {"plan_needs_dual": 1}
    prefill_only.close(room)


def test_blocks_that_are_just_being_written_are_waited_for(side: Decode) -> None:
    room = side.room(2 * BLOCK_TOKENS + 1, "prefill")
    lease = side.resources.buffer.lease(2)
    assert lease is not None
    for index, key in enumerate(room.chain.keys):
        assert side.resources.writer.submit(key, lease, index)
    lease.release()
    assert side.plan(room).hit_blocks == 2
    side.close(room)


def test_a_store_that_cannot_be_reached_is_a_counted_miss(side: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(keys: object) -> int:
        raise OSError(5, "Input/output error")

    room = side.room(2 * BLOCK_TOKENS + 1, "decode")
    monkeypatch.setattr(side.resources.store, "present_prefix", unreachable)
    assert side.plan(room).hit_blocks == 0
    assert side.fallbacks() == {"lookup_failed": 1}
    side.close(room)


def test_a_room_that_was_aborted_before_it_was_planned_is_not_sent(side: Decode) -> None:
    room = side.room(2 * BLOCK_TOKENS + 1, "decode")
    persist(side.resources, room.chain.keys)
    room.aborted = True
    side.planner.submit(room, 0, side._send, side.failures.put)
    side.close(room)
    assert not room.sent
    assert room.read is None


def test_a_room_is_reading_until_nothing_writes_into_its_lease(tmp_path: Path) -> None:
    built = make_resources(tmp_path, role="decode")
    store = HeldStore(built.store)
    built.read_queue._store = store
    side = Decode(built)
    room = side.room(3 * BLOCK_TOKENS + 1, "decode")
    persist(built, room.chain.keys)
    side.plan(room)
    assert store.reading.wait(WAIT_S)
    assert room.is_reading
    with room.lock:
        room.aborted = True
        assert room.read is not None
        room.read.cancel()
    assert room.is_reading
    store.let_go.set()
    assert room.read.done.wait(WAIT_S)
    side.planner._threads.shutdown(wait=True)
    assert not room.is_reading
    side.close(room)
    built.close()


def test_a_failure_to_plan_is_told_and_ends_the_planning(side: Decode) -> None:
    def broken(message: Message) -> bool:
        raise ConnectionError("no route")

    room = side.room(10)
    side.planner.submit(room, 0, broken, side.failures.put)
    assert "no route" in side.failures.get(timeout=WAIT_S)
    side.close(room)
    assert not room.is_reading
    assert not room.sent


def test_release_of_a_room_is_safe_to_repeat(side: Decode) -> None:
    room = side.room(100)
    room.release()
    room.release()
    assert_nothing_held(side.resources)


def test_settling_twice_gives_back_once(side: Decode) -> None:
    room = side.room(2 * BLOCK_TOKENS + 1, "prefill")
    persist(side.resources, room.chain.keys)
    side.plan(room)
    side.planner._threads.shutdown(wait=True)
    side.planner.settle(room)
    side.planner.settle(room)
    assert side.planner._delegated_tokens == 0
    side.close(room)

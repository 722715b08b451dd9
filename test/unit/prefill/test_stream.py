"""Streaming to one decode engine: rows land where they belong, in order, and a dead or ended request stops nothing else."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sglang_dualpath.buffer.block_buffer import BlockBuffer
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange.messages import Destination
from sglang_dualpath.prefill.room import LocalRun, PrefillRoom
from sglang_dualpath.prefill.stream import (
    Finish,
    HitBlocks,
    LayerRows,
    PeerStream,
    StagingArea,
    StreamEvents,
    StreamItem,
)

from test.unit.engine_parts import BLOCK_TOKENS, WAIT_S, LoopbackTransport, assert_nothing_held, block_content

N_BLOCKS = 4


class Streams:
    """A stream to a decode engine whose buffer lies in this process."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        transport = resources.transport
        assert isinstance(transport, LoopbackTransport)
        self.transport = transport
        self.told: queue.SimpleQueue[tuple[str, int, str]] = queue.SimpleQueue()
        self.ended = threading.Semaphore(0)
        geometry = resources.paged.geometry
        self.peer = BlockBuffer(geometry, 2 * N_BLOCKS * geometry.full_block_bytes)
        events = StreamEvents(
            finished=lambda room: self.told.put(("finished", room.room, "")),
            failed=lambda room, reason: self.told.put(("failed", room.room, reason)),
            end_job=self._end_job,
        )
        staging = StagingArea(resources, geometry.layer_block_bytes)
        self.stream = PeerStream(resources, "peer", staging, events)

    def room(self, room_id: int = 1) -> PrefillRoom:
        """A request whose KV goes to a lease of the peer's buffer."""
        lease = self.peer.lease(N_BLOCKS)
        assert lease is not None
        for n in range(N_BLOCKS):
            lease.array(n)[:] = 0
        return PrefillRoom(
            room_id,
            0.0,
            destination=Destination(
                room=room_id,
                session="peer",
                endpoint="h",
                port=1,
                aux_index=0,
                prompt_tokens=N_BLOCKS * BLOCK_TOKENS,
                block_addresses=[lease.address(n) for n in range(N_BLOCKS)],
                hit_blocks=0,
                decode_read_blocks=0,
                last_hit_key=b"",
            ),
        )

    def send(self, *items: StreamItem) -> None:
        """Queue items and wait until all are done with."""
        for item in items:
            assert item.room.begin_job()
            self.stream.put(item)
        for _ in items:
            assert self.ended.acquire(timeout=WAIT_S)

    def arrived(self, room: PrefillRoom) -> np.ndarray:
        """The peer's blocks of a request, uint8 `[layers, tokens, bytes]`."""
        assert room.destination is not None
        geometry = self.resources.paged.geometry
        first = (room.destination.block_addresses[0] - self.peer.base_address) // geometry.full_block_bytes
        return np.concatenate(list(self.peer.blocks[first : first + N_BLOCKS]), axis=1)

    def _end_job(self, room: PrefillRoom) -> None:
        room.end_job()
        self.ended.release()


@pytest.fixture
def streams(resources: EngineResources) -> Iterator[Streams]:
    """A stream whose staging holds one Layer Block."""
    built = Streams(resources)
    yield built
    built.stream.close()
    assert_nothing_held(resources)


def pool_rows(resources: EngineResources, layer: int, slots: torch.Tensor) -> np.ndarray:
    """The pool's bytes at slots of a layer."""
    rows = np.empty((len(slots), resources.paged.geometry.token_bytes), dtype=np.uint8)
    resources.paged.gather(layer, slots, rows)
    return rows


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 64), (10, 30), (60, 70), (3, 250), (192, 256)])
def test_rows_land_in_their_blocks_and_touch_nothing_else(streams: Streams, start: int, stop: int) -> None:
    room = streams.room()
    slots = torch.randperm(1024, generator=torch.Generator().manual_seed(3))[: stop - start]
    streams.send(*(LayerRows(room, layer, start, slots) for layer in range(3)))
    arrived = streams.arrived(room)
    for layer in range(3):
        assert np.array_equal(arrived[layer, start:stop], pool_rows(streams.resources, layer, slots))
    assert not arrived[:, :start].any()
    assert not arrived[:, stop:].any()
    geometry = streams.resources.paged.geometry
    assert room.streamed_bytes == 3 * (stop - start) * geometry.token_bytes
    assert streams.told.empty()


def test_hit_blocks_go_whole_and_their_memory_is_held_until_then(streams: Streams) -> None:
    room = streams.room()
    lease = streams.resources.buffer.lease(3)
    assert lease is not None
    for n in range(3):
        lease.array(n)[:] = block_content(streams.resources.paged.geometry, n)
    run = LocalRun(1, lease, good_blocks=2)
    streams.send(HitBlocks(room, run, 2))
    arrived = streams.arrived(room)
    for n in range(2):
        begin = (1 + n) * BLOCK_TOKENS
        assert np.array_equal(
            arrived[:, begin : begin + BLOCK_TOKENS], block_content(streams.resources.paged.geometry, n)
        )
    assert not arrived[:, :BLOCK_TOKENS].any()
    assert not arrived[:, 3 * BLOCK_TOKENS :].any()
    assert room.streamed_bytes == 2 * streams.resources.paged.geometry.full_block_bytes
    assert streams.resources.buffer.n_leases == 0


def test_the_end_follows_all_data(streams: Streams) -> None:
    room = streams.room()
    slots = torch.arange(BLOCK_TOKENS)
    seen: list[bool] = []

    def send_metadata() -> None:
        seen.append(
            all(
                np.array_equal(streams.arrived(room)[layer, :BLOCK_TOKENS], pool_rows(streams.resources, layer, slots))
                for layer in range(3)
            )
        )

    streams.send(*(LayerRows(room, layer, 0, slots) for layer in range(3)), Finish(room, send_metadata))
    assert seen == [True]
    assert streams.told.get() == ("finished", 1, "")
    assert streams.told.empty()


def test_a_peer_that_is_gone_fails_the_request_with_its_name(streams: Streams) -> None:
    room = streams.room()
    streams.transport.reachable = False
    streams.send(LayerRows(room, 0, 0, torch.arange(4)))
    told, room_id, reason = streams.told.get()
    assert (told, room_id) == ("failed", 1)
    assert "decode engine peer" in reason
    assert room.jobs == 0


def test_after_one_requests_failure_the_next_is_sent(streams: Streams) -> None:
    bad, good = streams.room(1), streams.room(2)
    assert bad.destination is not None

    def no_metadata() -> None:
        raise KeyError("peer")

    streams.send(Finish(bad, no_metadata), LayerRows(good, 0, 0, torch.arange(4)))
    assert streams.told.get()[:2] == ("failed", 1)
    assert np.array_equal(streams.arrived(good)[0, :4], pool_rows(streams.resources, 0, torch.arange(4)))
    assert streams.told.empty()


def test_what_is_queued_for_a_request_that_has_ended_is_dropped(streams: Streams) -> None:
    room, other = streams.room(1), streams.room(2)
    gate = threading.Event()
    streams.transport.before_write = lambda: gate.wait(WAIT_S)
    lease = streams.resources.buffer.lease(1)
    assert lease is not None
    assert other.begin_job()
    streams.stream.put(LayerRows(other, 0, 0, torch.arange(4)))
    items: list[StreamItem] = [
        LayerRows(room, 0, 0, torch.arange(4)),
        HitBlocks(room, LocalRun(0, lease, good_blocks=1), 1),
        Finish(room, lambda: None),
    ]
    for item in items:
        assert room.begin_job()
        streams.stream.put(item)
    room.failure = "aborted"
    gate.set()
    for _ in range(4):
        assert streams.ended.acquire(timeout=WAIT_S)
    assert not streams.arrived(room).any()
    assert room.jobs == 0
    assert streams.told.empty()
    assert streams.resources.buffer.n_leases == 0


def test_an_event_of_the_device_is_waited_for_before_rows_are_read(streams: Streams) -> None:
    class Event:
        waited = False

        def synchronize(self) -> None:
            self.waited = True

    event = Event()
    streams.send(LayerRows(streams.room(), 0, 0, torch.arange(4), ready=event))
    assert event.waited


def test_every_item_wakes_the_scheduler(streams: Streams) -> None:
    streams.resources.wakeup.clear()
    streams.send(LayerRows(streams.room(), 0, 0, torch.arange(4)))
    streams.stream.close()
    assert streams.resources.wakeup.is_set()

"""Loading hit blocks into the pool: each token from the one buffer that has it, and whole or not at all."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.buffer.block_buffer import BlockBuffer
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange.messages import Destination
from sglang_dualpath.prefill.loader import LayerLoader, LoadBatch, LoadJob, split_by_source
from sglang_dualpath.prefill.room import LocalRun, PrefillRequest, PrefillRoom

from test.unit.engine_parts import (
    BLOCK_TOKENS,
    WAIT_S,
    LoopbackTransport,
    assert_nothing_held,
    block_content,
    persist,
    prompt_chain,
)

N_BLOCKS = 6


# ---- who has which token

TINY = BlockGeometry(n_layers=1, token_bytes=1)


@st.composite
def rooms(draw: st.DrawFn) -> tuple[PrefillRoom, BlockBuffer]:
    """A room with some remote blocks and some runs of its own, in no order."""
    buffer = BlockBuffer(TINY, 32 * TINY.full_block_bytes)
    room = PrefillRoom(1, 0.0, remote_ready_blocks=draw(st.integers(0, N_BLOCKS)))
    for first, n_blocks in draw(st.lists(st.tuples(st.integers(0, N_BLOCKS), st.integers(1, 4)), max_size=4)):
        lease = buffer.lease(n_blocks)
        assert lease is not None
        room.runs.append(LocalRun(first, lease, good_blocks=draw(st.integers(0, n_blocks))))
    return room, buffer


@given(rooms(), st.data())
def test_every_token_comes_from_one_buffer_that_has_it(
    made: tuple[PrefillRoom, BlockBuffer], data: st.DataObject
) -> None:
    room, buffer = made
    available = room.hit_end() * BLOCK_TOKENS
    start = data.draw(st.integers(0, available // 16)) * 16
    stop = data.draw(st.integers(start // 16, available // 16)) * 16
    job = LoadJob(room, start, torch.arange(start, stop))
    pieces = split_by_source(job, BLOCK_TOKENS)
    tokens: list[int] = []
    for piece in pieces:
        span = range(piece.first_token, piece.first_token + piece.n_tokens)
        assert piece.slots.tolist() == list(span)
        tokens += span
        if piece.lease is None:
            assert span.stop <= (room.remote_ready_blocks or 0) * BLOCK_TOKENS
        else:
            (run,) = [run for run in room.runs if run.lease is piece.lease]
            assert piece.lease_first_block == run.first_block
            assert run.first_block * BLOCK_TOKENS <= span.start
            assert span.stop <= (run.first_block + run.good_blocks) * BLOCK_TOKENS
    assert tokens == list(range(start, stop))
    room.release_runs()
    for piece in pieces:
        if piece.lease is not None:
            piece.lease.release()
    assert buffer.n_leases == 0


@given(rooms())
def test_a_token_that_no_buffer_has_is_an_error_and_holds_nothing(made: tuple[PrefillRoom, BlockBuffer]) -> None:
    room, buffer = made
    end = room.hit_end() * BLOCK_TOKENS
    with pytest.raises(RuntimeError, match=f"tokens {end} to {end + 1} are in no buffer"):
        split_by_source(LoadJob(room, 0, torch.arange(end + 1)), BLOCK_TOKENS)
    room.release_runs()
    assert buffer.n_leases == 0


# ---- moving them


class Loads:
    """A loader over a room whose first blocks lie at the peer and whose others lie here."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        transport = resources.transport
        assert isinstance(transport, LoopbackTransport)
        self.transport = transport
        self.events: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self.ended = threading.Semaphore(0)
        self.loader = LayerLoader(
            resources,
            2 * resources.paged.geometry.layer_block_bytes,
            lambda index, layer: self.events.put(("complete", (index, layer))),
            lambda index, error: self.events.put(("fail", (index, error))),
            self._end_job,
        )
        geometry = resources.paged.geometry
        self.blocks = [block_content(geometry, n) for n in range(N_BLOCKS)]
        self.peer = BlockBuffer(geometry, N_BLOCKS * geometry.full_block_bytes)

    def room(self, remote_blocks: int) -> PrefillRoom:
        """Blocks before `remote_blocks` lie at the peer, the others in a run of this engine."""
        chain = prompt_chain(self.resources.namespace, N_BLOCKS * BLOCK_TOKENS + 1)
        room = PrefillRoom(1, 0.0, remote_ready_blocks=remote_blocks)
        room.request = PrefillRequest("rid", chain.n_tokens, chain.keys)
        lease = self.peer.lease(N_BLOCKS)
        assert lease is not None
        room.destination = Destination(
            room=1,
            session="peer",
            endpoint="h",
            port=1,
            aux_index=0,
            prompt_tokens=chain.n_tokens,
            block_addresses=[lease.address(n) for n in range(N_BLOCKS)],
            hit_blocks=N_BLOCKS,
            decode_read_blocks=remote_blocks,
            last_hit_key=chain.keys[-1],
        )
        for n in range(remote_blocks):
            lease.array(n)[:] = self.blocks[n]
        if remote_blocks < N_BLOCKS:
            own = self.resources.buffer.lease(N_BLOCKS - remote_blocks)
            assert own is not None
            for n in range(remote_blocks, N_BLOCKS):
                own.array(n - remote_blocks)[:] = self.blocks[n]
            room.runs.append(LocalRun(remote_blocks, own, good_blocks=N_BLOCKS - remote_blocks))
        return room

    def load(self, room: PrefillRoom, start: int, stop: int) -> list[tuple[str, object]]:
        """Load tokens [start, stop) to the slots 1023, 1022, ...; what was told meanwhile."""
        assert room.begin_job()
        self.loader.submit(LoadBatch(4, [LoadJob(room, start, self.slots(start, stop))]))
        assert self.ended.acquire(timeout=WAIT_S)
        told = []
        while not self.events.empty():
            told.append(self.events.get())
        return told

    def slots(self, start: int, stop: int) -> torch.Tensor:
        """Where tokens are loaded to."""
        return 1023 - torch.arange(start, stop)

    def in_pool(self, start: int, stop: int) -> bool:
        """Whether the pool has exactly the blocks' bytes of these tokens."""
        paged = self.resources.paged
        whole = np.concatenate(self.blocks, axis=1)
        rows = np.empty((stop - start, paged.geometry.token_bytes), dtype=np.uint8)
        same = True
        for layer in range(paged.geometry.n_layers):
            paged.gather(layer, self.slots(start, stop), rows)
            same = same and np.array_equal(rows, whole[layer, start:stop])
        return same

    def _end_job(self, room: PrefillRoom) -> None:
        room.end_job()
        self.ended.release()


@pytest.fixture
def loads(resources: EngineResources) -> Iterator[Loads]:
    """A loader whose staging holds two Layer Blocks."""
    built = Loads(resources)
    yield built
    built.loader.close()


ALL_LAYERS = [("complete", (4, layer)) for layer in range(3)]


@pytest.mark.parametrize("remote_blocks", [0, 2, N_BLOCKS])
@pytest.mark.parametrize(("start", "stop"), [(0, N_BLOCKS * 64), (64, 320), (80, 304), (128, 144)])
def test_tokens_land_in_their_slots_layer_by_layer(loads: Loads, remote_blocks: int, start: int, stop: int) -> None:
    room = loads.room(remote_blocks)
    assert loads.load(room, start, stop) == ALL_LAYERS
    assert loads.in_pool(start, stop)
    assert loads.resources.counters.snapshot() == {
        "counts": {
            "loaded_tokens": stop - start,
            **pulled(loads.resources, max(0, min(stop, remote_blocks * 64) - start)),
        },
        "fallbacks": {},
    }
    room.release_runs()
    assert_nothing_held(loads.resources)


def pulled(resources: EngineResources, n_tokens: int) -> dict[str, int]:
    """The count of what was pulled from the peer."""
    geometry = resources.paged.geometry
    n_bytes = n_tokens * geometry.n_layers * geometry.token_bytes
    return {"pulled_bytes": n_bytes} if n_bytes else {}


def test_a_peer_that_is_gone_is_replaced_by_the_store(loads: Loads) -> None:
    room = loads.room(4)
    assert room.request is not None
    assert len(persist(loads.resources, room.request.keys)) == N_BLOCKS
    loads.transport.reachable = False
    assert loads.load(room, 64, N_BLOCKS * 64) == ALL_LAYERS
    assert loads.in_pool(64, N_BLOCKS * 64)
    assert loads.resources.counters.snapshot()["fallbacks"] == {"peer_pull_failed": 1}
    room.release_runs()
    assert_nothing_held(loads.resources)


def test_a_peer_that_goes_between_two_layers_is_replaced_by_the_store(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = loads.room(N_BLOCKS)
    assert room.request is not None
    persist(loads.resources, room.request.keys)
    scatter = loads.resources.paged.scatter

    def scatter_then_cut(layer: int, slots: torch.Tensor, rows: np.ndarray) -> None:
        scatter(layer, slots, rows)
        loads.transport.reachable = False

    monkeypatch.setattr(loads.resources.paged, "scatter", scatter_then_cut)
    assert loads.load(room, 0, N_BLOCKS * 64) == ALL_LAYERS
    assert loads.in_pool(0, N_BLOCKS * 64)
    assert_nothing_held(loads.resources)


def test_blocks_that_neither_peer_nor_store_has_fail_the_batch_and_hold_nothing(loads: Loads) -> None:
    room = loads.room(4)
    loads.transport.reachable = False
    ((told, (index, error)),) = loads.load(room, 0, N_BLOCKS * 64)  # type: ignore[misc]
    assert (told, index) == ("fail", 4)
    assert "peer cannot be reached" in str(error)
    assert room.jobs == 0
    room.release_runs()
    assert_nothing_held(loads.resources)


def test_without_buffer_for_the_replacement_the_batch_fails(loads: Loads) -> None:
    room = loads.room(4)
    assert room.request is not None
    persist(loads.resources, room.request.keys)
    loads.transport.reachable = False
    lease = loads.resources.buffer.lease(13)
    assert lease is not None
    ((told, _),) = loads.load(room, 0, N_BLOCKS * 64)
    assert told == "fail"
    lease.release()
    room.release_runs()
    assert_nothing_held(loads.resources)


def test_after_a_batch_that_failed_the_next_is_loaded(loads: Loads) -> None:
    room = loads.room(0)
    ((told, (_, error)),) = loads.load(room, 0, N_BLOCKS * 64 + 1)  # type: ignore[misc]
    assert told == "fail"
    assert "in no buffer" in str(error)
    assert loads.load(room, 0, N_BLOCKS * 64) == ALL_LAYERS
    room.release_runs()
    assert_nothing_held(loads.resources)


def test_the_staging_area_is_registered_with_the_transport(loads: Loads) -> None:
    sizes = list(loads.transport.registered.values())
    assert sizes == [2 * loads.resources.paged.geometry.layer_block_bytes]

"""The linker: it promises the tree what a room's buffers hold, loads what was promised, and gives it back when told to."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.prefill.linker import DualPathLinker, LayerProgress
from sglang_dualpath.prefill.room import LocalRun, PrefillRoom

from test.unit.engine_parts import BLOCK_TOKENS, assert_nothing_held

PAGE_TOKENS = 16
PAGES_A_BLOCK = BLOCK_TOKENS // PAGE_TOKENS


class Manager:
    """The rooms that the linker asks for."""

    def __init__(self) -> None:
        self.rooms: dict[str, PrefillRoom] = {}

    def room_of_rid(self, rid: str) -> PrefillRoom | None:
        """A request's room."""
        return self.rooms.get(rid)

    def end_job(self, room: PrefillRoom) -> None:
        """A job has ended."""
        room.end_job()


class Linked:
    """A linker of an engine, built without upstream's server arguments."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        self.manager = Manager()
        self.linker: Any = object.__new__(DualPathLinker)
        self.linker.resources = resources
        self.linker.layer_done_counter = LayerProgress(resources.paged.geometry.n_layers)
        self.linker._page_tokens = PAGE_TOKENS
        self.linker._queued = {}
        self.linker._started = {}
        self.linker._manager = None
        self.linker._loader = None
        self.linker.attach(self.manager)

    def room(self, n_blocks: int, *, rid: str = "rid") -> PrefillRoom:
        """An eligible room whose hit blocks this engine has read."""
        room = PrefillRoom(1, 0.0, eligible=True, usable_hit_blocks=n_blocks, remote_ready_blocks=0)
        lease = self.resources.buffer.lease(n_blocks)
        assert lease is not None
        room.runs.append(LocalRun(0, lease, good_blocks=n_blocks))
        self.manager.rooms[rid] = room
        return room


def transfer(n_pages: int, slots: torch.Tensor | None = None) -> list[Any]:
    """What the tree asks: so many pages past the device prefix, into these slots."""
    return [SimpleNamespace(keys=[b""] * n_pages, device_indices=slots)]


@pytest.fixture
def linked(resources: EngineResources) -> Iterator[Linked]:
    """A linker; at its end nothing is held."""
    built = Linked(resources)
    yield built
    built.linker.close()
    for room in built.manager.rooms.values():
        room.release_runs()
    assert_nothing_held(resources)


# ---- promises


def test_all_page_lengths_up_to_the_hit_can_be_restored(linked: Linked) -> None:
    linked.room(2)
    assert linked.linker.lookup("rid", transfer(100)) == list(range(1, 2 * PAGES_A_BLOCK + 1))


def test_no_more_is_promised_than_was_asked(linked: Linked) -> None:
    linked.room(2)
    assert linked.linker.lookup("rid", transfer(3)) == [1, 2, 3]


@pytest.mark.parametrize(("device_hit", "n_pages"), [(0, 8), (16, 7), (112, 1), (128, 0), (160, 0)])
def test_what_the_device_has_already_is_not_promised_again(linked: Linked, device_hit: int, n_pages: int) -> None:
    linked.room(2)
    linked.linker.note_device_hit("rid", device_hit)
    assert linked.linker.lookup("rid", transfer(100)) == list(range(1, n_pages + 1))


def test_a_request_without_a_room_is_promised_nothing(linked: Linked) -> None:
    linked.linker.note_device_hit("other", 16)
    assert linked.linker.lookup("other", transfer(10)) == []
    assert linked.linker.load("other", transfer(10, torch.arange(16))) is False


def test_before_its_blocks_are_in_a_buffer_a_request_is_promised_nothing(linked: Linked) -> None:
    linked.room(2).eligible = False
    assert linked.linker.lookup("rid", transfer(10)) == []


def test_once_its_buffer_is_gone_a_request_is_promised_nothing(linked: Linked) -> None:
    linked.room(2).release_runs()
    assert linked.linker.lookup("rid", transfer(10)) == []


# ---- loads


def test_a_batch_without_loads_has_no_index(linked: Linked) -> None:
    assert linked.linker.start_layer_wise_loading() == -1


def test_a_load_lands_and_frees_the_buffer_it_came_out_of(linked: Linked, resources: EngineResources) -> None:
    room = linked.room(2)
    assert linked.linker.load("rid", transfer(8, torch.arange(128)))
    index = linked.linker.start_layer_wise_loading()
    assert index >= 0
    assert linked.linker.finish_layer_wise_loading(index)
    linked.linker._loader.close()
    assert room.jobs == 0
    assert not room.holds_runs
    assert resources.buffer.n_leases == 0
    assert resources.counters.snapshot()["counts"] == {"loaded_tokens": 128}


def test_the_slots_of_a_load_are_those_at_the_time_it_was_asked_for(linked: Linked) -> None:
    linked.room(2)
    slots = torch.arange(128)
    linked.linker.load("rid", transfer(8, slots))
    slots[:] = 0
    assert linked.linker._queued["rid"].slots.tolist() == list(range(128))


def test_a_load_begins_behind_what_the_device_has(linked: Linked) -> None:
    linked.room(2)
    linked.linker.note_device_hit("rid", 48)
    linked.linker.load("rid", transfer(5, torch.arange(80)))
    assert linked.linker._queued["rid"].start_token == 48


def test_a_room_that_has_ended_is_not_loaded(linked: Linked) -> None:
    linked.room(2).failure = "aborted"
    assert linked.linker.load("rid", transfer(8, torch.arange(128))) is False
    assert linked.linker.start_layer_wise_loading() == -1


def test_a_cancelled_load_ends_its_job_and_is_not_started(linked: Linked) -> None:
    room = linked.room(2)
    linked.linker.load("rid", transfer(8, torch.arange(128)))
    assert room.jobs == 1
    assert linked.linker.cancel_queued_load("rid")
    assert not linked.linker.cancel_queued_load("rid")
    assert room.jobs == 0
    assert linked.linker.start_layer_wise_loading() == -1


def test_reset_cancels_every_queued_load(linked: Linked) -> None:
    rooms = [linked.room(2, rid=rid) for rid in ("a", "b")]
    for rid in ("a", "b"):
        linked.linker.load(rid, transfer(8, torch.arange(128)))
    linked.linker.reset()
    assert [room.jobs for room in rooms] == [0, 0]


def test_a_load_that_fails_is_told_and_the_buffer_is_freed(linked: Linked, resources: EngineResources) -> None:
    room = linked.room(2)
    linked.linker.load("rid", transfer(9, torch.arange(144)))
    index = linked.linker.start_layer_wise_loading()
    assert linked.linker.finish_layer_wise_loading(index) is False
    linked.linker._loader.close()
    assert room.jobs == 0
    assert resources.buffer.n_leases == 0


def test_nothing_is_ever_offloaded_from_here(linked: Linked) -> None:
    assert linked.linker.offload(transfer(1)) is False
    assert linked.linker.num_completed_offloads() == 0
    with pytest.raises(IndexError):
        linked.linker.pop_completed_offload()


# ---- progress of the forward


def test_each_layer_that_the_forward_reaches_is_told() -> None:
    progress = LayerProgress(3)
    reached: list[int] = []
    progress.on_layer_reached = reached.append
    for layer in range(3):
        progress.wait_until(layer)
    assert reached == [0, 1, 2]
    progress.on_layer_reached = None
    progress.wait_until(0)
    assert reached == [0, 1, 2]

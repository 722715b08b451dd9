"""The prefill engine's end of the exchange: whatever order things come in, a room ends once and its abort is answered last."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import AbortNotification
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.exchange import messages, rendezvous
from sglang_dualpath.exchange.messages import Destination, Message, PeerHello, ReadProgress
from sglang_dualpath.prefill.manager import PrefillKVManager
from sglang_dualpath.prefill.room import PrefillRequest

from test.unit.engine_parts import (
    BLOCK_TOKENS,
    WAIT_S,
    HeldStore,
    assert_nothing_held,
    make_resources,
    persist,
    prompt_chain,
)

N_BLOCKS = 3
ROOM = 11


class Prefill(PrefillKVManager):
    """The manager without upstream's sockets: what it would say is kept."""

    def __init__(self, resources: EngineResources) -> None:
        self.said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._built_over = resources
        super().__init__()

    def update_status(self, bootstrap_room: int, status: Any) -> None:
        """Upstream's status of a room."""
        self.said.put(("status", status))

    def conclude_transfer(self, **told: Any) -> None:
        """Upstream's verdict on a room."""
        self.said.put(("success" if told["status"] == KVPoll.Success else "failure", told))

    def conclude_failure(self, **told: Any) -> None:
        """Upstream's verdict on a room."""
        self.said.put(("failure", told))

    def send_kv_status_message(self, **told: Any) -> None:
        """Upstream's message to decode engines, without a verdict here."""
        self.said.put(("status message", told))

    def _send_abort_ack(self, room: int, target: Any) -> None:
        self.said.put(("ack", room))

    def write_metadata(self, *to: Any) -> None:
        """Upstream's metadata buffers."""
        self.said.put(("metadata", to))

    def hears(self, message: Message) -> None:
        """Take a message of the decode engine."""
        self.handle(messages.encode(message))

    def aborted(self) -> None:
        """The decode engine gives the request up, and waits for the answer."""
        notification = AbortNotification(room=ROOM, decode_ip="10.0.0.2", decode_port=9000, generation=1)
        self.handle(notification.to_zmq())

    def next_said(self) -> tuple[str, Any]:
        """What it says next."""
        return self.said.get(timeout=WAIT_S)

    def wait_said(self, what: str) -> None:
        """Wait until it says this."""
        while self.next_said()[0] != what:
            pass


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rendezvous as upstream would have made it."""

    def made(self: Any) -> None:
        self.resources = self._built_over
        self.attn_tp_size = 1
        self.bootstrap_timeout = 60.0
        self.kv_args = SimpleNamespace(aux_data_ptrs=[], aux_item_lens=[])

    monkeypatch.setattr(rendezvous.RendezvousManager, "__init__", made)
    monkeypatch.setattr(rendezvous.RendezvousManager, "start_control_thread", lambda _: None)


@pytest.fixture
def prefill(resources: EngineResources) -> Iterator[Prefill]:
    """A manager over the resources of this test; at its end nothing is held."""
    manager = Prefill(resources)
    yield manager
    manager.clear_room(ROOM)
    for stream in manager._streams.values():
        stream.close()
    assert manager.n_rooms == 0
    assert_nothing_held(resources)


HELLO = PeerHello(session="decode:1", tp_size=1, aux_addresses=[], aux_item_bytes=[])


def request(resources: EngineResources) -> PrefillRequest:
    """The request of these tests."""
    chain = prompt_chain(resources.namespace, N_BLOCKS * BLOCK_TOKENS + 1)
    return PrefillRequest("rid", chain.n_tokens, chain.keys)


def destination(resources: EngineResources, **changes: Any) -> Destination:
    """Its destination: a path-B read of all its blocks."""
    asked = request(resources)
    made = Destination(
        room=ROOM,
        session=HELLO.session,
        endpoint="10.0.0.2",
        port=9000,
        aux_index=0,
        prompt_tokens=asked.prompt_tokens,
        block_addresses=[0] * (N_BLOCKS + 1),
        hit_blocks=N_BLOCKS,
        decode_read_blocks=N_BLOCKS,
        last_hit_key=asked.keys[N_BLOCKS - 1],
    )
    return msgspec.structs.replace(made, **changes)


def said_failure(prefill: Prefill) -> tuple[str, list]:
    """The reason and the listeners of the failure that is said next."""
    what, told = prefill.next_said()
    assert what == "failure"
    return told["failure_reason"], told["targets"]


# ---- the order in which things come


@pytest.mark.parametrize("order", ["rdp", "drp", "dpr"])
def test_request_destination_and_progress_make_a_room_eligible_in_any_order(
    prefill: Prefill, resources: EngineResources, order: str
) -> None:
    prefill.hears(HELLO)
    steps = {
        "r": lambda: prefill.open_room(ROOM, request(resources)),
        "d": lambda: prefill.hears(destination(resources)),
        "p": lambda: prefill.hears(ReadProgress(room=ROOM, ready_blocks=N_BLOCKS)),
    }
    for step in order:
        assert prefill.said.empty()
        steps[step]()
    assert prefill.next_said() == ("status", KVPoll.WaitingForInput)
    room = prefill.room_of_rid("rid")
    assert room is prefill.room_of_id(ROOM)
    assert room is not None
    assert room.usable_hit_blocks == N_BLOCKS
    assert resources.counters.snapshot()["counts"] == {"prefill_requests": 1, "path_b_blocks": N_BLOCKS}


def test_what_path_a_read_is_sent_on_to_the_decode_engine(prefill: Prefill, resources: EngineResources) -> None:
    asked = request(resources)
    persist(resources, asked.keys)
    geometry = resources.paged.geometry
    peer = make_peer(resources)
    prefill.hears(HELLO)
    prefill.open_room(ROOM, asked)
    prefill.hears(destination(resources, decode_read_blocks=0, block_addresses=peer.addresses))
    assert prefill.next_said() == ("status", KVPoll.WaitingForInput)
    room = prefill.room_of_id(ROOM)
    assert room is not None
    prefill.finish(room, 0)
    prefill.wait_said("success")
    assert resources.counters.snapshot()["counts"]["sent_hit_bytes"] == N_BLOCKS * geometry.full_block_bytes
    assert resources.counters.snapshot()["counts"]["path_a_blocks"] == N_BLOCKS
    peer.lease.release()


def make_peer(resources: EngineResources) -> SimpleNamespace:
    """Blocks of this engine's own buffer in the place of the decode engine's."""
    lease = resources.buffer.lease(N_BLOCKS + 1)
    assert lease is not None
    return SimpleNamespace(lease=lease, addresses=[lease.address(n) for n in range(N_BLOCKS + 1)])


def test_a_second_destination_changes_nothing(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(HELLO)
    prefill.hears(destination(resources))
    prefill.hears(destination(resources, hit_blocks=0, decode_read_blocks=0, last_hit_key=b""))
    room = prefill.room_of_id(ROOM)
    assert room is not None
    assert room.destination == destination(resources)


def test_progress_of_a_room_that_nobody_knows_is_dropped(prefill: Prefill) -> None:
    prefill.hears(ReadProgress(room=ROOM, ready_blocks=1))
    assert prefill.n_rooms == 0


# ---- what cannot work together


def test_a_decode_engine_that_never_said_hello_is_refused(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(destination(resources))
    reason, targets = said_failure(prefill)
    assert "never introduced itself" in reason
    assert targets == [("10.0.0.2", 9000)]


def test_another_tp_size_is_refused_by_its_flag(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(msgspec.structs.replace(HELLO, tp_size=2))
    prefill.hears(destination(resources))
    assert "--tp-size differs: prefill 1, decode 2" in said_failure(prefill)[0]


def test_a_request_that_comes_after_its_destination_was_refused_fails_with_the_same_reason(
    prefill: Prefill, resources: EngineResources
) -> None:
    prefill.hears(destination(resources))
    refused = said_failure(prefill)
    prefill.open_room(ROOM, request(resources))
    assert said_failure(prefill) == refused
    assert prefill.said.empty()


@pytest.mark.parametrize("first", ["request", "destination"])
def test_prompts_of_different_lengths_are_refused_whichever_comes_first(
    prefill: Prefill, resources: EngineResources, first: str
) -> None:
    prefill.hears(HELLO)
    longer = destination(resources, prompt_tokens=request(resources).prompt_tokens + 1)
    if first == "request":
        prefill.open_room(ROOM, request(resources))
        prefill.hears(longer)
    else:
        prefill.hears(longer)
        prefill.open_room(ROOM, request(resources))
    assert "different lengths" in said_failure(prefill)[0]
    assert prefill.said.empty()


@pytest.mark.parametrize("frames", [[], [b"x"], [messages.FRAME_TAG, b"\xff"], [messages.FRAME_TAG, b"\x80"]])
def test_malformed_messages_are_counted_and_dropped(
    prefill: Prefill, resources: EngineResources, frames: list[bytes]
) -> None:
    prefill.handle(frames)
    assert resources.counters.snapshot()["counts"] == {"malformed_messages": 1}
    assert prefill.n_rooms == 0


# ---- ends


def test_the_first_reason_stands(prefill: Prefill, resources: EngineResources) -> None:
    prefill.open_room(ROOM, request(resources))
    prefill.fail_room(ROOM, "first")
    prefill.fail_room(ROOM, "second")
    assert said_failure(prefill)[0] == "first"
    assert prefill.said.empty()


def test_an_abort_of_a_room_that_nobody_knows_is_answered_at_once(prefill: Prefill) -> None:
    prefill.aborted()
    assert prefill.next_said() == ("ack", ROOM)


def test_an_abort_is_not_told_back_to_who_sent_it(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(HELLO)
    prefill.open_room(ROOM, request(resources))
    prefill.hears(destination(resources))
    prefill.aborted()
    assert said_failure(prefill) == ("aborted by the decode engine", [])
    assert prefill.next_said() == ("ack", ROOM)


def test_an_abort_before_the_request_came_leaves_no_room(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(HELLO)
    prefill.hears(destination(resources))
    prefill.aborted()
    prefill.wait_said("ack")
    assert prefill.n_rooms == 0


def test_a_request_that_comes_after_its_abort_fails_at_once(prefill: Prefill, resources: EngineResources) -> None:
    prefill.aborted()
    prefill.wait_said("ack")
    prefill.open_room(ROOM, request(resources))
    assert said_failure(prefill)[0] == "aborted by the decode engine"


@pytest.mark.parametrize("ended_by", ["abort", "clear"])
def test_a_destination_that_comes_after_its_request_has_ended_is_answered_and_makes_no_room(
    prefill: Prefill, resources: EngineResources, ended_by: str
) -> None:
    prefill.hears(HELLO)
    prefill.open_room(ROOM, request(resources))
    if ended_by == "abort":
        prefill.fail_room(ROOM, "Aborted by AbortReq.")
        said_failure(prefill)
    prefill.clear_room(ROOM)
    prefill.hears(destination(resources))
    what, told = prefill.next_said()
    assert (what, told["status"], told["targets"]) == ("status message", KVPoll.Failed, [("10.0.0.2", 9000)])
    assert ("Aborted" in told["failure_reason"]) == (ended_by == "abort")
    assert prefill.n_rooms == 0


def test_an_abort_is_answered_only_when_the_last_job_has_ended(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(HELLO)
    prefill.open_room(ROOM, request(resources))
    prefill.hears(destination(resources))
    room = prefill.room_of_id(ROOM)
    assert room is not None
    assert room.begin_job()
    assert room.begin_job()
    prefill.aborted()
    assert said_failure(prefill)[0] == "aborted by the decode engine"
    prefill.end_job(room)
    assert prefill.said.empty()
    prefill.end_job(room)
    assert prefill.next_said() == ("ack", ROOM)
    assert prefill.said.empty()


def test_an_abort_during_a_read_is_answered_when_the_read_has_let_go(tmp_path: Path) -> None:
    resources = make_resources(tmp_path)
    store = HeldStore(resources.store)
    resources.read_queue._store = store
    prefill = Prefill(resources)
    asked = request(resources)
    persist(resources, asked.keys)
    prefill.hears(HELLO)
    prefill.open_room(ROOM, asked)
    prefill.hears(destination(resources, decode_read_blocks=0))
    assert store.reading.wait(WAIT_S)
    prefill.aborted()
    assert said_failure(prefill)[0] == "aborted by the decode engine"
    prefill.clear_room(ROOM)
    assert prefill.said.empty()
    assert resources.buffer.n_used_blocks == N_BLOCKS
    store.let_go.set()
    assert prefill.next_said() == ("ack", ROOM)
    assert prefill.n_rooms == 0
    assert_nothing_held(resources)
    resources.close()


def test_a_cleared_room_is_forgotten_with_its_request(prefill: Prefill, resources: EngineResources) -> None:
    prefill.open_room(ROOM, request(resources))
    prefill.clear_room(ROOM)
    assert prefill.room_of_rid("rid") is None
    assert prefill.room_of_id(ROOM) is None


def test_a_destination_whose_request_never_comes_is_given_up(
    prefill: Prefill, resources: EngineResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill.hears(HELLO)
    prefill.hears(destination(resources))
    prefill.tick()
    assert prefill.n_rooms == 1
    monkeypatch.setattr(prefill, "bootstrap_timeout", -1.0)
    prefill.tick()
    assert "never reached the prefill engine" in said_failure(prefill)[0]
    assert prefill.n_rooms == 0


def test_nothing_is_streamed_for_a_room_that_has_ended(prefill: Prefill, resources: EngineResources) -> None:
    prefill.hears(HELLO)
    prefill.open_room(ROOM, request(resources))
    prefill.hears(destination(resources))
    room = prefill.room_of_id(ROOM)
    assert room is not None
    prefill.fail_room(ROOM, "why")
    prefill.finish(room, 0)
    assert room.jobs == 0
    assert prefill._streams == {}


def test_a_stream_that_fails_fails_its_request_and_tells_the_decode_engine(
    prefill: Prefill, resources: EngineResources
) -> None:
    prefill.hears(HELLO)
    prefill.open_room(ROOM, request(resources))
    prefill.hears(destination(resources, hit_blocks=0, decode_read_blocks=0, last_hit_key=b""))
    assert prefill.next_said() == ("status", KVPoll.WaitingForInput)
    room = prefill.room_of_id(ROOM)
    assert room is not None
    prefill._peers.clear()
    prefill.finish(room, 0)
    reason, targets = said_failure(prefill)
    assert "decode engine decode:1" in reason
    assert targets == [("10.0.0.2", 9000)]
    prefill._streams["decode:1"].close()
    assert room.jobs == 0


def test_two_aborts_and_a_clear_from_three_threads_end_a_room_once(
    prefill: Prefill, resources: EngineResources
) -> None:
    for _ in range(30):
        prefill.open_room(ROOM, request(resources))
        threads = [
            threading.Thread(target=act) for act in (prefill.aborted, prefill.aborted, lambda: prefill.clear_room(ROOM))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert prefill.n_rooms == 0
        said = []
        while not prefill.said.empty():
            said.append(prefill.said.get()[0])
        assert said.count("ack") == 2

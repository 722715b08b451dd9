"""One node's storage NIC: its processes share a queue and a wire; a process that dies leaves neither behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.store import nic as nic_module
from sglang_dualpath.store.file import StoreUnusable
from sglang_dualpath.store.nic import NodeStorageNic

from test.unit.store.processes import other_process

ENGINE = """
import sys
from pathlib import Path
from sglang_dualpath.store.nic import NodeStorageNic
nic = NodeStorageNic("node", float(sys.argv[2]) or None, Path(sys.argv[1]))
nic.add_queued_tokens(500)
print("queued", flush=True)
sys.stdin.readline()
nic.close()
"""


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def time(self) -> float:
        """Now."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the NIC looks at."""
    clock = Clock()
    monkeypatch.setattr(nic_module, "time", clock)
    return clock


@pytest.fixture
def nic(tmp_path: Path) -> Iterator[NodeStorageNic]:
    """A NIC of 100 bytes a second."""
    opened = NodeStorageNic("node", 100.0, tmp_path)
    yield opened
    opened.close()


# ---- the wire


def test_bytes_take_their_time_on_the_wire(nic: NodeStorageNic, clock: Clock) -> None:
    nic.acquire(250)
    assert clock.slept_s == [pytest.approx(2.5)]


def test_an_idle_wire_saves_nothing_up(nic: NodeStorageNic, clock: Clock) -> None:
    nic.acquire(100)
    clock.now_s += 60
    nic.acquire(100)
    assert clock.slept_s == [pytest.approx(1.0), pytest.approx(1.0)]


def test_engines_of_a_node_share_one_wire(nic: NodeStorageNic, clock: Clock, tmp_path: Path) -> None:
    other = NodeStorageNic("node", 100.0, tmp_path)
    waits = []
    for one in (nic, other, nic):
        before = clock.now_s
        one.acquire(100)
        waits.append(clock.slept_s[-1])
        clock.now_s = before  # as if all had asked at the same moment
    assert waits == [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(3.0)]
    other.close()


def test_other_nodes_have_other_wires(nic: NodeStorageNic, clock: Clock, tmp_path: Path) -> None:
    other = NodeStorageNic("another", 100.0, tmp_path)
    nic.acquire(1000)
    before = len(clock.slept_s)
    clock.now_s = 1000.0
    other.acquire(100)
    assert clock.slept_s[before:] == [pytest.approx(1.0)]
    other.close()


@given(sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_the_wire_is_never_faster_than_its_bandwidth(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(nic_module, "time", clock)
        nic = NodeStorageNic("node", 100.0, tmp_path_factory.mktemp("node"))
        for size in sizes:
            nic.acquire(size)
        assert clock.now_s - 1000.0 == pytest.approx(sum(sizes) / 100.0)
        assert nic.bytes_read == sum(sizes)
        nic.close()


def test_without_a_bandwidth_bytes_are_counted_and_nothing_waits(clock: Clock, tmp_path: Path) -> None:
    nic = NodeStorageNic("node", None, tmp_path)
    nic.acquire(10**12)
    assert clock.slept_s == []
    assert nic.bytes_read == 10**12
    nic.close()


# ---- the queue


def test_the_queue_is_the_nodes(nic: NodeStorageNic, tmp_path: Path) -> None:
    other = NodeStorageNic("node", 100.0, tmp_path)
    nic.add_queued_tokens(64)
    other.add_queued_tokens(128)
    assert nic.node_queued_tokens() == other.node_queued_tokens() == 192
    nic.add_queued_tokens(-64)
    assert other.node_queued_tokens() == 128
    other.close()
    assert nic.node_queued_tokens() == 0


def test_another_process_adds_to_the_queue_until_it_leaves(nic: NodeStorageNic, tmp_path: Path) -> None:
    nic.add_queued_tokens(64)
    with other_process(ENGINE, str(tmp_path), "100") as engine:
        assert engine.hears() == "queued"
        assert nic.node_queued_tokens() == 564
        engine.say("leave")
        assert engine.finish() == 0
    assert nic.node_queued_tokens() == 64


def test_a_killed_processes_queue_vanishes_with_it(nic: NodeStorageNic, tmp_path: Path) -> None:
    with other_process(ENGINE, str(tmp_path), "100") as engine:
        assert engine.hears() == "queued"
        assert nic.node_queued_tokens() == 500
        engine.kill()
        assert nic.node_queued_tokens() == 0


def test_a_later_process_with_a_dead_ones_id_does_not_inherit_its_queue(
    nic: NodeStorageNic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nic.add_queued_tokens(64)
    monkeypatch.setattr(nic_module, "_start_time", lambda _: 12345)
    assert nic.node_queued_tokens() == 0


# ---- joining and leaving


def test_a_bandwidth_that_differs_from_a_live_engines_is_refused_by_the_flag(
    nic: NodeStorageNic, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnusable, match=r"--kv-store-read-bandwidth 50 differs from the 100 .*--kv-node-id"):
        NodeStorageNic("node", 50.0, tmp_path)
    with pytest.raises(StoreUnusable, match="--kv-store-read-bandwidth"):
        NodeStorageNic("node", None, tmp_path)


def test_a_refused_engine_leaves_the_others_alone(nic: NodeStorageNic, tmp_path: Path) -> None:
    nic.add_queued_tokens(64)
    with pytest.raises(StoreUnusable):
        NodeStorageNic("node", 50.0, tmp_path)
    assert nic.node_queued_tokens() == 64
    NodeStorageNic("node", 100.0, tmp_path).close()


def test_after_all_engines_have_died_another_bandwidth_is_fine(tmp_path: Path) -> None:
    with other_process(ENGINE, str(tmp_path), "100") as engine:
        assert engine.hears() == "queued"
        engine.kill()
    nic = NodeStorageNic("node", 50.0, tmp_path)
    assert nic.node_queued_tokens() == 0
    nic.close()


def test_the_last_engine_leaves_no_file(tmp_path: Path) -> None:
    one, other = NodeStorageNic("node", None, tmp_path), NodeStorageNic("node", None, tmp_path)
    one.close()
    assert len(list(tmp_path.iterdir())) == 1
    other.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_begun_anew(tmp_path: Path) -> None:
    NodeStorageNic("node", None, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"\xff" * path.stat().st_size)
    nic = NodeStorageNic("node", 100.0, tmp_path)
    assert nic.node_queued_tokens() == 0
    nic.close()


def test_an_engine_that_joins_while_the_last_one_leaves_shares_with_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = NodeStorageNic("node", None, tmp_path)
    original = NodeStorageNic._open

    def leave_meanwhile(self: NodeStorageNic) -> None:
        original(self)
        leaving.close()

    with monkeypatch.context() as patch:
        patch.setattr(NodeStorageNic, "_open", leave_meanwhile)
        joined = NodeStorageNic("node", None, tmp_path)
    later = NodeStorageNic("node", None, tmp_path)
    joined.add_queued_tokens(64)
    assert later.node_queued_tokens() == 64
    joined.close()
    later.close()


def test_a_node_has_room_for_many_engines_and_then_says_so(tmp_path: Path) -> None:
    engines = [NodeStorageNic("node", None, tmp_path) for _ in range(256)]
    with pytest.raises(StoreUnusable, match=r"256 engines.*--kv-node-id"):
        NodeStorageNic("node", None, tmp_path)
    engines[7].close()
    engines[7] = NodeStorageNic("node", None, tmp_path)
    for engine in engines:
        engine.close()
    assert list(tmp_path.iterdir()) == []

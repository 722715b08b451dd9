"""The Mooncake transport between two processes of this host, over TCP."""

import ctypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sglang_dualpath.config import FlagError
from sglang_dualpath.transport.mooncake import MooncakeTransport, rdma_devices
from sglang_dualpath.transport.transport import TransferError

from test.unit.store.processes import OtherProcess, other_process

N_BYTES = 16 * 1024 * 1024

PEER = """
import sys
import numpy as np
from sglang_dualpath.transport.mooncake import MooncakeTransport
memory = np.arange(16 * 1024 * 1024, dtype=np.uint8)
transport = MooncakeTransport("127.0.0.1", "tcp")
transport.register(memory.ctypes.data, memory.nbytes)
print("PEER", transport.session, memory.ctypes.data, flush=True)
for line in sys.stdin:
    print("SUM", int(memory[:1000].sum()), flush=True)
transport.close()
"""


class Peer:
    """A process with 16 MiB of registered memory that counts up from 0, byte by byte."""

    def __init__(self, process: OtherProcess) -> None:
        self.process = process
        _, self.session, address = self._hears("PEER").split()
        self.address = int(address)

    def sum_of_first_1000_bytes(self) -> int:
        """What lies in its memory now, as it sees it."""
        self.process.say("look")
        return int(self._hears("SUM").split()[1])

    def _hears(self, word: str) -> str:
        while not (line := self.process.hears()).startswith(word):
            pass  # the engine logs to the same pipe
        return line


@pytest.fixture(scope="module")
def transport() -> Iterator[MooncakeTransport]:
    """This process's transport."""
    opened = MooncakeTransport("127.0.0.1", "tcp")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def memory(transport: MooncakeTransport) -> np.ndarray:
    """This process's registered memory."""
    area = np.zeros(N_BYTES, dtype=np.uint8)
    transport.register(area.ctypes.data, area.nbytes)
    return area


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A peer in another process."""
    with other_process(PEER) as process:
        yield Peer(process)


def test_reads_gather_pieces_of_the_peers_memory(transport: MooncakeTransport, memory: np.ndarray, peer: Peer) -> None:
    memory[:] = 0
    here = memory.ctypes.data
    transport.read(peer.session, [here + 100, here], [peer.address + 7, peer.address + 3000], [50, 20])
    counting = np.arange(N_BYTES, dtype=np.uint8)
    assert np.array_equal(memory[100:150], counting[7:57])
    assert np.array_equal(memory[:20], counting[3000:3020])
    assert not memory[20:100].any()
    assert not memory[150:].any()


def test_writes_scatter_pieces_into_the_peers_memory(
    transport: MooncakeTransport, memory: np.ndarray, peer: Peer
) -> None:
    expected = np.arange(N_BYTES, dtype=np.uint8)
    memory[:30] = 200
    here = memory.ctypes.data
    transport.write(peer.session, [here, here + 10], [peer.address + 500, peer.address + 10], [10, 20])
    expected[500:510] = 200
    expected[10:30] = 200
    assert peer.sum_of_first_1000_bytes() == int(expected[:1000].sum())


def test_a_peer_that_died_is_a_transfer_error(transport: MooncakeTransport, memory: np.ndarray, peer: Peer) -> None:
    here = memory.ctypes.data
    transport.read(peer.session, [here], [peer.address], [100])
    peer.process.kill()
    with pytest.raises(TransferError, match=peer.session):
        transport.read(peer.session, [here], [peer.address], [100])
    with pytest.raises(TransferError, match=peer.session):
        transport.write(peer.session, [here], [peer.address], [100])


def test_a_peer_that_never_was_is_a_transfer_error(transport: MooncakeTransport, memory: np.ndarray) -> None:
    with pytest.raises(TransferError, match=r"127\.0\.0\.1:1"):
        transport.read("127.0.0.1:1", [memory.ctypes.data], [4096], [100])


def test_memory_that_the_peer_did_not_register_is_a_transfer_error_and_the_peer_lives(
    transport: MooncakeTransport, memory: np.ndarray, peer: Peer
) -> None:
    with pytest.raises(TransferError):
        transport.read(peer.session, [memory.ctypes.data], [peer.address + 10 * N_BYTES], [100])
    assert peer.sum_of_first_1000_bytes() == int(np.arange(1000, dtype=np.uint8).sum())


def test_a_call_may_have_more_pieces_than_the_engine_queues(
    transport: MooncakeTransport, memory: np.ndarray, peer: Peer
) -> None:
    """Mooncake refuses a batch of more than about 2,000: a layer of a prompt of 130,000 tokens."""
    memory[:] = 0
    n_pieces, n_bytes = 4096, 96
    offsets = range(0, n_pieces * 128, 128)
    local = [memory.ctypes.data + offset for offset in offsets]
    transport.read(peer.session, local, [peer.address + offset + 1 for offset in offsets], [n_bytes] * n_pieces)
    arrived = memory[: n_pieces * 128].reshape(n_pieces, 128)
    expected = np.arange(1, n_pieces * 128 + 1, dtype=np.uint8).reshape(n_pieces, 128)
    assert np.array_equal(arrived[:, :n_bytes], expected[:, :n_bytes])
    assert not arrived[:, n_bytes:].any()


@pytest.mark.parametrize("failing", [0, 5, 15])
def test_after_a_failed_read_the_memory_is_the_callers_again(
    transport: MooncakeTransport, memory: np.ndarray, peer: Peer, failing: int
) -> None:
    """A piece that arrived later would spoil what the memory is used for next."""
    n_pieces, n_bytes = 16, N_BYTES // 16
    local = [memory.ctypes.data + i * n_bytes for i in range(n_pieces)]
    remote = [peer.address + i * n_bytes for i in range(n_pieces)]
    remote[failing] = peer.address + 10 * N_BYTES
    with pytest.raises(TransferError):
        transport.read(peer.session, local, remote, [n_bytes] * n_pieces)
    memory[:] = 99
    # Pieces on the way would pass before this one, over the same few connections, or during the pause.
    transport.read(peer.session, [memory.ctypes.data], [peer.address], [1])
    time.sleep(0.3)
    assert memory[0] == 0
    assert (memory[1:] == 99).all()


def test_pieces_of_unequal_number_are_a_mistake_of_the_caller(transport: MooncakeTransport, memory: np.ndarray) -> None:
    here = memory.ctypes.data
    with pytest.raises(ValueError, match="zip"):
        transport.read("127.0.0.1:1", [here, here], [here], [1, 1])


def test_a_transport_that_is_closed_can_be_closed_again() -> None:
    opened = MooncakeTransport("127.0.0.1", "tcp")
    area = np.zeros(4096, dtype=np.uint8)
    opened.register(area.ctypes.data, area.nbytes)
    with pytest.raises(TransferError, match="4096 bytes"):
        opened.register(area.ctypes.data, area.nbytes)
    opened.close()
    opened.close()
    opened.register(area.ctypes.data, area.nbytes)
    opened.close()


def test_another_transport_of_this_process_is_a_peer_like_any_other(
    transport: MooncakeTransport, memory: np.ndarray
) -> None:
    other = MooncakeTransport("127.0.0.1", "tcp")
    area = np.full(1000, 7, dtype=np.uint8)
    other.register(area.ctypes.data, area.nbytes)
    transport.read(other.session, [memory.ctypes.data], [area.ctypes.data], [1000])
    assert ctypes.string_at(memory.ctypes.data, 1000) == bytes([7]) * 1000
    other.close()


def test_rdma_on_a_host_without_a_device_is_refused_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, tmp_path / "not-there"):
        monkeypatch.setattr("sglang_dualpath.transport.mooncake.RDMA_DEVICES", place)
        assert rdma_devices() == []
        with pytest.raises(FlagError, match=r"--kv-transport-protocol rdma.*use auto or tcp"):
            MooncakeTransport("127.0.0.1", "rdma")


def test_rdma_devices_are_those_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_dualpath.transport.mooncake.RDMA_DEVICES", tmp_path)
    (tmp_path / "mlx5_1").mkdir()
    (tmp_path / "mlx5_0").mkdir()
    assert rdma_devices() == ["mlx5_0", "mlx5_1"]


def test_without_the_mooncake_engine_the_remedy_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(FlagError, match=r"--kv-transport mooncake: .*sglang-dualpath\[cpu\]"):
        MooncakeTransport("127.0.0.1", "tcp")

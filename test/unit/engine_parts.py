"""An engine's resources over a tiny model: everything real but the wire, which copies inside this process."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from sglang_dualpath.blocks.geometry import BLOCK_TOKENS, BlockGeometry
from sglang_dualpath.blocks.key import BlockKey, BlockKeyChain, BlockNamespace
from sglang_dualpath.blocks.paged import PagedMha
from sglang_dualpath.buffer.block_buffer import BlockBuffer
from sglang_dualpath.config import DualPathConfig
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.store.block_store import BlockStore, WriteOutcome
from sglang_dualpath.store.file import FileStore
from sglang_dualpath.store.nic import NodeStorageNic
from sglang_dualpath.store.read_queue import ReadQueue
from sglang_dualpath.store.writer import BlockWriter
from sglang_dualpath.telemetry.counters import EngineCounters
from sglang_dualpath.telemetry.rate import ComputeRate
from sglang_dualpath.transport.transport import TransferError

N_LAYERS = 3
POOL_SLOTS = 1024
WAIT_S = 30.0
"""How long a test waits for what must come; never part of what it asserts."""


def namespace(geometry: BlockGeometry, **fields: object) -> BlockNamespace:
    """A namespace of some model, with some fields replaced."""
    values: dict = {
        "model": "m",
        "weights_revision": "r",
        "kv_dtype": "torch.float32",
        "geometry": geometry,
        "kind": "mha",
        "tp_rank": 0,
        "tp_size": 1,
    }
    return BlockNamespace(**{**values, **fields})


class LoopbackTransport:
    """Copies between addresses of this process; can be told to fail."""

    def __init__(self) -> None:
        self.session = "loopback:1"
        self.registered: dict[int, int] = {}
        self.reachable = True
        self.moved_bytes = 0
        self.before_write: Callable[[], object] | None = None

    def register(self, address: int, n_bytes: int) -> None:
        """See `Transport.register`."""
        self.registered[address] = n_bytes

    def read(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.read`."""
        self._copy(peer, local, remote, lengths)

    def write(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """See `Transport.write`."""
        if self.before_write is not None:
            self.before_write()
        self._copy(peer, remote, local, lengths)

    def close(self) -> None:
        """See `Transport.close`."""
        self.registered.clear()

    def _copy(self, peer: str, to: Sequence[int], origin: Sequence[int], lengths: Sequence[int]) -> None:
        if not self.reachable:
            raise TransferError(f"{peer} cannot be reached")
        for target, source, n_bytes in zip(to, origin, lengths, strict=True):
            ctypes.memmove(target, source, n_bytes)
            self.moved_bytes += n_bytes


def random_pool(seed: int) -> PagedMha:
    """An MHA pool of `POOL_SLOTS` slots with random content: 3 layers, 2 heads of 4 float32."""
    generator = torch.Generator().manual_seed(seed)
    layers = [torch.randn(POOL_SLOTS, 2, 4, generator=generator) for _ in range(2 * N_LAYERS)]
    return PagedMha(layers[:N_LAYERS], layers[N_LAYERS:])


class HeldStore:
    """A store whose reads wait until they are let go; what a storage that hangs looks like."""

    def __init__(self, store: BlockStore) -> None:
        self.unlimited = store.unlimited
        self.let_go = threading.Event()
        self.reading = threading.Event()
        self._store = store
        self.present_prefix = store.present_prefix
        self.write = store.write
        self.close = store.close

    def read(self, key: BlockKey, into: memoryview) -> object:
        """Read, once let go."""
        self.reading.set()
        assert self.let_go.wait(WAIT_S)
        return self._store.read(key, into)


def make_resources(
    directory: Path,
    *,
    role: str = "prefill",
    path: str = "dual",
    buffer_blocks: int = 16,
    store: BlockStore | None = None,
    seed: int = 0,
) -> EngineResources:
    """The resources of one engine whose store lies in `directory`."""
    pool = random_pool(seed)
    names = namespace(pool.geometry)
    if store is None:
        store = FileStore(directory / "store", names)
    nic = NodeStorageNic("test-node", None, directory)
    config = DualPathConfig(
        path="dual" if path == "dual" else "prefill",
        store_url=f"file://{directory / 'store'}",
        buffer_bytes=buffer_blocks * pool.geometry.full_block_bytes,
        transport="mooncake",
        transport_protocol="tcp",
        router_control=None,
        store_read_bandwidth_bytes_per_s=None,
        node_id="test-node",
    )
    return EngineResources(
        config=config,
        role=role,
        paged=pool,
        namespace=names,
        store=store,
        nic=nic,
        read_queue=ReadQueue(store, nic, 2),
        buffer=BlockBuffer(pool.geometry, config.buffer_bytes),
        transport=LoopbackTransport(),
        writer=BlockWriter(store, 1, 64),
        counters=EngineCounters(),
        compute_rate=ComputeRate(),
        wakeup=threading.Event(),
    )


def prompt_chain(names: BlockNamespace, n_tokens: int, seed: int = 0) -> BlockKeyChain:
    """The key chain of a random prompt."""
    chain = BlockKeyChain(names)
    chain.extend(np.random.default_rng(seed).integers(0, 1000, n_tokens))
    return chain


def block_content(geometry: BlockGeometry, seed: int) -> np.ndarray:
    """Random bytes of a Full Block, uint8 `[n_layers, block_tokens, token_bytes]`."""
    shape = (geometry.n_layers, geometry.block_tokens, geometry.token_bytes)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def persist(resources: EngineResources, keys: Sequence[BlockKey]) -> list[np.ndarray]:
    """Put a random block into the store under each key; returns their contents."""
    blocks = [block_content(resources.paged.geometry, index) for index in range(len(keys))]
    for key, block in zip(keys, blocks, strict=True):
        assert resources.store.write(key, memoryview(block.reshape(-1))) is WriteOutcome.WRITTEN
    return blocks


def damage(directory: Path, key: BlockKey) -> None:
    """Flip one byte in the middle of a stored block."""
    (path,) = (directory / "store").rglob(key.hex())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def assert_nothing_held(resources: EngineResources) -> None:
    """Every pool, lease and queue is back to its start."""
    assert resources.buffer.n_leases == 0
    assert resources.buffer.n_used_blocks == 0
    assert resources.read_queue.queued_tokens == 0
    assert resources.nic.node_queued_tokens() == 0


__all__ = [
    "BLOCK_TOKENS",
    "WAIT_S",
    "HeldStore",
    "LoopbackTransport",
    "assert_nothing_held",
    "block_content",
    "damage",
    "make_resources",
    "namespace",
    "persist",
    "prompt_chain",
    "random_pool",
]

"""Everything that one engine process (one TP rank's scheduler) holds for DualPath: built once, closed once."""

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import Any

from sglang_dualpath.blocks.key import BlockKeyChain, BlockNamespace
from sglang_dualpath.blocks.paged import PagedLayers
from sglang_dualpath.buffer.block_buffer import BlockBuffer
from sglang_dualpath.config import DualPathConfig, FlagError
from sglang_dualpath.engine.model import model_identity
from sglang_dualpath.engine.pools import paged_layers
from sglang_dualpath.store.block_store import BlockStore, WriteOutcome
from sglang_dualpath.store.nic import NodeStorageNic
from sglang_dualpath.store.read_queue import ReadQueue
from sglang_dualpath.store.url import open_store
from sglang_dualpath.store.writer import BlockWriter
from sglang_dualpath.telemetry.counters import EngineCounters
from sglang_dualpath.telemetry.rate import ComputeRate
from sglang_dualpath.telemetry.stages import StageTimes
from sglang_dualpath.transport.mooncake import MooncakeTransport, rdma_devices
from sglang_dualpath.transport.transport import Transport

logger = logging.getLogger(__name__)

READ_THREADS = 4
WRITE_THREADS = 1
WRITE_QUEUE_BLOCKS = 4096


@dataclass
class EngineResources:
    """What the prefill or decode side works with. `wakeup` is set whenever a background thread has news."""

    config: DualPathConfig
    role: str
    paged: PagedLayers
    namespace: BlockNamespace
    store: BlockStore
    nic: NodeStorageNic
    read_queue: ReadQueue
    buffer: BlockBuffer
    transport: Transport
    writer: BlockWriter
    counters: EngineCounters
    compute_rate: ComputeRate
    wakeup: threading.Event
    stages: StageTimes = field(default_factory=StageTimes)
    new_token_rate: ComputeRate = field(default_factory=ComputeRate)
    """Like `compute_rate`, cached tokens left out."""
    read_rate: ComputeRate = field(default_factory=ComputeRate)
    """Tokens a second that the read queue has delivered while it had something to do."""

    def key_chain(self, extra_key: str | None) -> BlockKeyChain:
        """A chain that keys a request's blocks; `extra_key` separates tenants (upstream `Req.extra_key`)."""
        return BlockKeyChain(self.namespace, extra_key)

    def revise_weights(self, revision: str) -> None:
        """The weights have changed: blocks of the old ones are no longer found, and requests that began with them
        persist nothing more."""
        self.namespace = replace(self.namespace, weights_revision=revision)
        self.counters.add("weight_revisions")
        logger.info("weights changed: namespace is now %s", self.namespace.hex[:12])

    def close(self) -> None:
        """Stop threads, leave the store and the node's queue."""
        self.read_queue.close()
        self.writer.close()
        self.transport.close()
        self.store.close()
        self.nic.close()


_current: EngineResources | None = None


def current() -> EngineResources:
    """The process's resources. Raises RuntimeError before `build`."""
    if _current is None:
        raise RuntimeError("DualPath resources are not built yet: upstream's start-up order has changed")
    return _current


def is_built() -> bool:
    """Whether this process is an engine rank that uses DualPath."""
    return _current is not None


def build(config: DualPathConfig, role: str, pool: Any, server_args: Any, ranks: tuple[int, int]) -> EngineResources:
    """Build the resources over upstream's KV pool; `ranks` is (attention TP rank, attention TP size).

    Raises FlagError naming the flag when a store, a buffer or a transport cannot be had.
    """
    global _current
    if _current is not None:
        return _current
    paged, kind = paged_layers(pool)
    identity = model_identity(server_args)
    namespace = BlockNamespace(
        model=identity.name,
        weights_revision=identity.revision,
        kv_dtype=str(pool.dtype),
        geometry=paged.geometry,
        kind=kind,
        tp_rank=ranks[0],
        tp_size=ranks[1],
    )
    buffer = _open_buffer(config, paged)
    store = open_store(config.store_url, namespace)
    nic = NodeStorageNic(config.node_id, None if store.unlimited else config.store_read_bandwidth_bytes_per_s)
    protocol = _protocol(config, pool)
    transport = MooncakeTransport(identity.host, protocol)
    transport.register(buffer.base_address, buffer.nbytes)
    counters = EngineCounters()
    read_rate = ComputeRate()
    _current = EngineResources(
        config=config,
        role=role,
        paged=paged,
        namespace=namespace,
        store=store,
        nic=nic,
        read_queue=ReadQueue(store, nic, READ_THREADS, read_rate.observe),
        read_rate=read_rate,
        buffer=buffer,
        transport=transport,
        writer=BlockWriter(store, WRITE_THREADS, WRITE_QUEUE_BLOCKS, lambda outcome: _count_write(counters, outcome)),
        counters=counters,
        compute_rate=ComputeRate(),
        wakeup=threading.Event(),
    )
    logger.info(
        "DualPath %s engine: path=%s store=%s buffer=%d blocks of %d bytes transport=%s://%s node=%s namespace=%s",
        role,
        config.path,
        config.store_url,
        buffer.capacity_blocks,
        paged.geometry.full_block_bytes,
        protocol,
        transport.session,
        config.node_id,
        namespace.hex[:12],
    )
    return _current


def _count_write(counters: EngineCounters, outcome: WriteOutcome) -> None:
    if outcome is WriteOutcome.FULL:
        counters.fallback("store_full", "the store has no space left; the block is not persisted")
    elif outcome is WriteOutcome.FAILED:
        counters.fallback("persist_failed", "the store did not take a block; it is not persisted")
    else:
        counters.add("written_blocks" if outcome is WriteOutcome.WRITTEN else "present_blocks")


def _open_buffer(config: DualPathConfig, paged: PagedLayers) -> BlockBuffer:
    if config.buffer_bytes < 4 * paged.geometry.full_block_bytes:
        raise FlagError(
            f"--kv-buffer-size {config.buffer_bytes} holds fewer than four blocks of this model "
            f"({paged.geometry.full_block_bytes} bytes each); give it more"
        )
    return BlockBuffer(paged.geometry, config.buffer_bytes)


def _protocol(config: DualPathConfig, pool: Any) -> str:
    if config.transport_protocol != "auto":
        return config.transport_protocol
    return "rdma" if str(pool.device) != "cpu" and rdma_devices() else "tcp"

"""Hit blocks as an external cache of upstream's radix tree: the tree asks, this answers out of the request's room.

The seam is upstream's `UnifiedCacheLinker`. Upstream queues a load when it builds a batch and its forward waits layer by
layer; a request reaches that point only once its blocks are in a DRAM buffer (`prefill.reading`), so a batch never waits
on storage.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from sglang_dualpath.engine import resources as engine_resources
from sglang_dualpath.engine.activation import active_config
from sglang_dualpath.prefill.loader import LayerLoader, LoadBatch, LoadJob
from sglang_dualpath.prefill.manager import PrefillKVManager
from sglang_dualpath.prefill.room import PrefillRoom

LOAD_STAGING_BYTES = 32 * 2**20


class LayerProgress(LayerWiseLoadCounter):
    """Upstream's per-layer completion counter, which also tells when the forward reaches a layer.

    Every attention layer asks its pool for the layer's buffer, which waits here: layers before it are finished.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__(n_layers)
        self.on_layer_reached: Callable[[int], None] | None = None

    def wait_until(self, threshold: int) -> None:
        """Block until layer `threshold` is loaded."""
        if self.on_layer_reached is not None:
            self.on_layer_reached(threshold)
        super().wait_until(threshold)


class DualPathLinker(UnifiedCacheLinker):
    """Constructed by upstream's `create_unified_cache_linker` (backend `dynamic`) in each prefill rank."""

    def __init__(
        self, server_args: Any, params: Any, *, components: Any, extra_config: Any, forward_stream: Any = None
    ):
        from sglang.srt.runtime_context import get_parallel

        pool = params.token_to_kv_pool_allocator.get_kvcache()
        parallel = get_parallel()
        self.resources = engine_resources.build(
            active_config(), "prefill", pool, server_args, (parallel.attn_tp_rank, parallel.attn_tp_size)
        )
        self.forward_stream = forward_stream
        self.pools = {PoolName.KV: pool}
        self.layer_done_counter = LayerProgress(self.resources.paged.geometry.n_layers)
        self._page_tokens = params.page_size
        self._queued: dict[str, LoadJob] = {}
        self._started: dict[int, list[PrefillRoom]] = {}
        self._manager: PrefillKVManager | None = None
        self._loader: LayerLoader | None = None

    def attach(self, manager: PrefillKVManager) -> None:
        """Join the KV manager, which upstream builds later."""
        self._manager = manager
        self._loader = LayerLoader(
            self.resources,
            LOAD_STAGING_BYTES,
            self.layer_done_counter.complete,
            self.layer_done_counter.fail,
            manager.end_job,
        )

    def note_device_hit(self, rid: str, device_hit_tokens: int) -> None:
        """How much of a request's prefix the tree has on the device; said just before `lookup`, which is not told."""
        room = self._room(rid)
        if room is not None:
            room.device_hit_tokens = device_hit_tokens

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Lengths, in pages past the device prefix, that the request's room can restore."""
        (transfer,) = transfers
        room = self._room(rid)
        if room is None or not room.eligible or not room.holds_runs:
            return []
        usable_tokens = room.usable_hit_blocks * self.resources.paged.geometry.block_tokens
        n_pages = min(len(transfer.keys), (usable_tokens - room.device_hit_tokens) // self._page_tokens)
        return list(range(1, n_pages + 1))

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue the load of what `lookup` promised into the given slots."""
        (transfer,) = transfers
        room = self._room(rid)
        if room is None or transfer.device_indices is None or not room.begin_job():
            return False
        self._queued[rid] = LoadJob(room, room.device_hit_tokens, transfer.device_indices.clone())
        return True

    def start_layer_wise_loading(self) -> int:
        """Start the loads of the batch that was just built; -1 when it has none."""
        if not self._queued:
            # The consumer index must not name an older batch's loads.
            return -1
        assert self._loader is not None
        index = self.layer_done_counter.update_producer()
        jobs = list(self._queued.values())
        self._queued.clear()
        self._started[index] = [job.room for job in jobs]
        self._loader.submit(LoadBatch(index, jobs))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait for a batch's loads; the buffer they came out of is free again."""
        landed = self.layer_done_counter.finish(counter_index)
        for room in self._started.pop(counter_index, []):
            room.release_runs()
        return landed

    def cancel_queued_load(self, rid: str) -> bool:
        """Drop a load that has not started."""
        job = self._queued.pop(rid, None)
        if job is None:
            return False
        assert self._manager is not None
        self._manager.end_job(job.room)
        return True

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        """Never: blocks are persisted once, by the decode engine."""
        return False

    def num_completed_offloads(self) -> int:
        """None, see `offload`."""
        return 0

    def pop_completed_offload(self) -> bool:
        """Upstream asks only for offloads it has counted, and there are none."""
        raise IndexError("no offload was queued")

    def reset(self) -> None:
        """Forget queued loads (upstream `/flush_cache`, while idle)."""
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        self.layer_done_counter.reset()

    def close(self) -> None:
        """Stop loading."""
        self.reset()
        if self._loader is not None:
            self._loader.close()

    def _room(self, rid: str) -> PrefillRoom | None:
        return None if self._manager is None else self._manager.room_of_rid(rid)

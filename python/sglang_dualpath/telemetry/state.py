"""One engine's DualPath state as plain data, for `/server_info` and for tests that look for leaks."""

from typing import Any

from sglang_dualpath.engine import resources as engine_resources

MAX_ROOMS_SHOWN = 32


def engine_state(scheduler: Any) -> dict[str, Any]:
    """Counters, buffer, read and write queues, and rooms that are still open."""
    held = engine_resources.current()
    manager = kv_manager(scheduler)
    return {
        **held.counters.snapshot(),
        "stages": held.stages.snapshot(),
        "role": held.role,
        "node_id": held.config.node_id,
        "kv_path": held.config.path,
        "buffer": {
            "capacity_blocks": held.buffer.capacity_blocks,
            "used_blocks": held.buffer.n_used_blocks,
            "leases": held.buffer.n_leases,
            "block_bytes": held.buffer.geometry.full_block_bytes,
        },
        "read_queue_tokens": held.read_queue.queued_tokens,
        "node_read_queue_tokens": held.nic.node_queued_tokens(),
        "nic_bytes": held.nic.bytes_read,
        "pending_writes": held.writer.n_pending,
        "rooms": 0 if manager is None else manager.n_rooms,
        "oldest_rooms": [] if manager is None else manager.describe_rooms(MAX_ROOMS_SHOWN),
    }


def kv_manager(scheduler: Any) -> Any:
    """The scheduler's KV manager; None before start-up has built it."""
    for name in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        queue = getattr(scheduler, name, None)
        if queue is not None:
            return queue.kv_manager
    return None

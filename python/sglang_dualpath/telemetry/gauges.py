"""What stands in an engine's queues and buffer now, in `/metrics` (upstream's `--enable-metrics`); set ten times a second by the
reporter."""

from typing import Any

from prometheus_client import Gauge

_NAMES = {
    "sglang:dualpath_read_queue_tokens": "Tokens waiting in this engine's storage read queue",
    "sglang:dualpath_node_read_queue_tokens": "Tokens waiting in the read queues of all engines of its node",
    "sglang:dualpath_node_read_bytes": "Bytes that have come through the node's storage NIC",
    "sglang:dualpath_buffer_used_blocks": "Full Blocks leased from its DRAM buffer",
    "sglang:dualpath_buffer_capacity_blocks": "Full Blocks its DRAM buffer holds",
    "sglang:dualpath_pending_writes": "Blocks on their way into the store",
}

_gauges: dict[str, Gauge] = {}


class EngineGauges:
    """One process's gauges."""

    def __init__(self) -> None:
        for name, text in _NAMES.items():
            if name not in _gauges:
                _gauges[name] = Gauge(name, text, multiprocess_mode="livemostrecent")

    def show(self, held: Any) -> None:
        """Take the values out of the engine's resources (`EngineResources`)."""
        values = (
            held.read_queue.queued_tokens,
            held.nic.node_queued_tokens(),
            held.nic.node_bytes_read(),
            held.buffer.n_used_blocks,
            held.buffer.capacity_blocks,
            held.writer.n_pending,
        )
        for name, value in zip(_NAMES, values, strict=True):
            _gauges[name].set(value)

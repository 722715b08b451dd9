"""Following a prefill forward: as it leaves a layer behind, that layer's new KV is streamed.

Work per layer is one queue entry a request; gathering and sending happen on the stream's thread.
"""

from dataclasses import dataclass
from typing import Any

import torch

from sglang_dualpath.prefill.linker import LayerProgress
from sglang_dualpath.prefill.manager import PrefillKVManager
from sglang_dualpath.prefill.room import PrefillRoom
from sglang_dualpath.prefill.sender import PrefillSender
from sglang_dualpath.prefill.stream import LayerRows


@dataclass(frozen=True, slots=True)
class StreamedTokens:
    """Tokens [start, start + len(slots)) of a request that the decode engine needs from the device."""

    room: PrefillRoom
    start_token: int
    slots: torch.Tensor


class ForwardStreamer:
    """Streams the layers of one forward at a time; used by the scheduler thread only."""

    def __init__(
        self, manager: PrefillKVManager, progress: LayerProgress, n_layers: int, forward_stream: Any = None
    ) -> None:
        self.manager = manager
        self._forward_stream = forward_stream
        self._progress = progress
        self._n_layers = n_layers
        self._tokens: list[StreamedTokens] = []
        self._next_layer = 0

    def begin(self, tokens: list[StreamedTokens]) -> None:
        """A forward that computes (or finds on the device) these tokens is about to run."""
        self._tokens = tokens
        self._next_layer = 0
        self._progress.on_layer_reached = self._reached if tokens else None

    def end(self) -> None:
        """The forward has been run: stream the layers that nobody waited for, such as the last."""
        self._reached(self._n_layers)
        self._progress.on_layer_reached = None
        self._tokens = []

    def _reached(self, layer: int) -> None:
        if self._next_layer >= layer or not self._tokens:
            return
        ready = self._written_event()
        while self._next_layer < layer:
            for part in self._tokens:
                self.manager.stream(LayerRows(part.room, self._next_layer, part.start_token, part.slots, ready))
            self._next_layer += 1

    def _written_event(self) -> Any:
        """On a device that runs behind the host: the event after which the layers so far are in the pool."""
        if self._tokens[0].slots.device.type == "cpu":
            return None
        event = torch.get_device_module(self._tokens[0].slots.device).Event()
        event.record(self._forward_stream) if self._forward_stream is not None else event.record()
        return event


def streamed_tokens(manager: PrefillKVManager, batch: Any, req_to_token: torch.Tensor) -> list[StreamedTokens]:
    """What a prefill batch (upstream `ScheduleBatch`) adds that its decode engines do not have yet.

    Starts at the end of the hit blocks that reach the decode engine buffer to buffer, or where the last chunk ended;
    prefix found on the device beyond them is sent as if computed.
    """
    parts: list[StreamedTokens] = []
    for req in batch.reqs:
        sender = req.disagg_kv_sender
        if not isinstance(sender, PrefillSender):
            continue
        room = manager.room_of_id(sender.bootstrap_room)
        if room is None or room.ended or not room.eligible or room.request is None:
            continue
        hit_tokens = room.usable_hit_blocks * manager.resources.paged.geometry.block_tokens
        start = max(hit_tokens, room.streamed_to_token)
        stop = min(req.extend_end, room.request.prompt_tokens)
        if stop <= start:
            continue
        if room.streamed_to_token == 0:
            manager.leave_stage(room, "wait")
        room.streamed_to_token = stop
        parts.append(
            StreamedTokens(room, start, req_to_token[req.kv.req_pool_idx, start:stop].to(torch.int64, copy=True))
        )
    return parts

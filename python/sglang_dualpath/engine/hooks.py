"""What runs at upstream's hook targets when `--kv-path` is on; `plugin` says where each is attached."""

import logging
import time
from typing import Any

from sglang_dualpath.engine import resources as engine_resources
from sglang_dualpath.engine.activation import active_config
from sglang_dualpath.engine.weights import weights_in_memory
from sglang_dualpath.telemetry.reporter import start_reporter
from sglang_dualpath.telemetry.state import engine_state

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.005
"""Longest pause of a scheduler that only waits for reads or transfers; their threads end it early."""


def kv_class(result: Any, transfer_backend: Any, class_type: Any) -> Any:
    """Our manager, sender and receiver instead of the transfer backend's own (upstream `get_kv_class`)."""
    if transfer_backend.value == "fake" or class_type.value not in ("manager", "sender", "receiver"):
        return None
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_mode == "prefill":
        from sglang_dualpath.prefill.manager import PrefillKVManager
        from sglang_dualpath.prefill.sender import PrefillSender

        return {"manager": PrefillKVManager, "sender": PrefillSender}.get(class_type.value)
    from sglang_dualpath.decode.manager import DecodeKVManager
    from sglang_dualpath.decode.receiver import DecodeReceiver

    return {"manager": DecodeKVManager, "receiver": DecodeReceiver}.get(class_type.value)


def join_linker(manager: Any, queue: Any) -> None:
    """Prefill start-up: the KV manager, the linker and the scheduler learn of each other."""
    from sglang_dualpath.prefill.forward import ForwardStreamer

    linker = queue.scheduler.tree_cache.linker.cache_linker
    linker.attach(manager)
    n_layers = linker.resources.paged.geometry.n_layers
    queue.scheduler.dualpath_streamer = ForwardStreamer(
        manager, linker.layer_done_counter, n_layers, linker.forward_stream
    )


def attach_sender(created: bool, queue: Any, req: Any, num_kv_heads: int) -> None:
    """Prefill arrival: key the prompt and open its room (upstream `PrefillBootstrapQueue.create_sender`)."""
    from sglang_dualpath.prefill.room import PrefillRequest
    from sglang_dualpath.prefill.sender import PrefillSender

    if not created or not isinstance(req.disagg_kv_sender, PrefillSender):
        return
    chain = engine_resources.current().key_chain(req.extra_key)
    chain.extend(req.origin_input_ids)
    req.disagg_kv_sender.attach(PrefillRequest(req.rid, len(req.origin_input_ids), chain.keys))


def note_device_hit(wrapper: Any, key: Any, req: Any, result: Any) -> None:
    """Before the tree asks the linker: tell it how much is on the device already."""
    wrapper.cache_linker.note_device_hit(req.rid, result.device_prefix_len)


def stream_forward(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each forward of a prefill engine: stream its layers as they finish."""
    streamer = getattr(scheduler, "dualpath_streamer", None)
    if streamer is None or not batch.forward_mode.is_extend():
        return original(scheduler, batch, *args, **kwargs)
    from sglang_dualpath.prefill.forward import streamed_tokens

    streamer.begin(streamed_tokens(streamer.manager, batch, scheduler.req_to_token_pool.req_to_token))
    began_s = time.monotonic()
    try:
        return original(scheduler, batch, *args, **kwargs)
    finally:
        streamer.end()
        tokens = sum(req.extend_end or 0 for req in batch.reqs)
        elapsed_s = time.monotonic() - began_s
        engine_resources.current().compute_rate.observe(tokens, elapsed_s)
        engine_resources.current().new_token_rate.observe(batch.extend_num_tokens or 0, elapsed_s)


def prealloc_queue_class() -> type:
    """What takes the place of upstream's `DecodePreallocQueue`."""
    from sglang_dualpath.decode.prealloc import DualPathPreallocQueue

    return DualPathPreallocQueue


def receive_into_host(result: None, queue: Any, *args: Any, **kwargs: Any) -> None:
    """Decode start-up: transfers end in DRAM (upstream's host-receive path, without its HiCache host pool)."""
    queue.enable_host_receive = True


def persist_decoded(scheduler: Any, batch: Any, result: Any) -> None:
    """Before a decode step's tokens are appended: persist the blocks it has filled."""
    queue = getattr(scheduler, "disagg_decode_prealloc_queue", None)
    if queue is None or not batch.forward_mode.is_decode():
        return
    for req in batch.reqs:
        if not req.finished():
            queue.persistence.persist_decoded(req)


def wait_for_news(result: None, scheduler: Any) -> None:
    """After an idle turn that still waits for reads or transfers: sleep until one ends, instead of spinning."""
    if scheduler.is_fully_idle():
        return
    wakeup = engine_resources.current().wakeup
    wakeup.wait(IDLE_WAIT_S)
    wakeup.clear()


def revise_weights(result: Any, updater: Any, recv_req: Any) -> None:
    """After any update of the weights: what was computed with the old ones must not be hit any more."""
    if engine_resources.is_built():
        model = updater.tp_worker.model_runner.model
        engine_resources.current().revise_weights(weights_in_memory(model))


def report_state(output: Any, controller: Any, request: Any) -> Any:
    """`/server_info` shows counters and pools under `internal_states[].dualpath`."""
    output.internal_state["dualpath"] = engine_state(controller.scheduler)
    return output


def begin_reports(result: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Scheduler start-up: report load to the router, if one was named."""
    config = active_config()
    if config.router_control is not None:
        start_reporter(scheduler, config.router_control)

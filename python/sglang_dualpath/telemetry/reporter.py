"""The thread of an engine rank that reports its load to the router."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import zmq

from sglang_dualpath.engine import resources as engine_resources
from sglang_dualpath.telemetry.gauges import EngineGauges
from sglang_dualpath.telemetry.report import EngineReport, encode

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 0.1

ROUTER_KEY_VARIABLE = "SGLANG_DUALPATH_ROUTER_KEY"
"""The public CURVE key of a router started with --control-curve-secret; not a flag, so that it stands in no process list."""

ALPHA_READ_S = 3.0
BETA_COMPUTE_S = 5.0
UNLIMITED_READ_TOKENS_PER_S = 1_000_000


def start_reporter(scheduler: Any, endpoint: str) -> None:
    """Report until the process ends; only the rank that leads its engine does."""
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().attn_tp_rank == 0:
        threading.Thread(target=_report, args=(scheduler, endpoint), name="dualpath-report", daemon=True).start()


def _report(scheduler: Any, endpoint: str) -> None:
    context = zmq.Context.instance()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 4)
    router_key = os.environ.get(ROUTER_KEY_VARIABLE)
    if router_key:
        # A key pair of this process's own: who holds the router's public key may report.
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = router_key.encode()
    socket.connect(endpoint)
    source = _ReportSource(scheduler)
    while True:
        try:
            socket.send(encode(source.report()), zmq.NOBLOCK)
        except zmq.Again:
            pass
        except Exception:
            logger.exception("load report to %s", endpoint)
        while socket.poll(0):
            socket.recv()
        time.sleep(REPORT_INTERVAL_S)


class _ReportSource:
    """Reads the scheduler's queues from another thread: copies of lists, never the lists themselves."""

    def __init__(self, scheduler: Any) -> None:
        from sglang.srt.runtime_context import get_disagg, get_parallel, get_serving

        self._scheduler = scheduler
        self._resources = engine_resources.current()
        self._gauges = EngineGauges()
        self._engine_id = uuid.uuid4().hex
        serving, disagg = get_serving(), get_disagg()
        own_address = self._resources.transport.session.rsplit(":", 1)[0]
        host = own_address if serving.host in ("0.0.0.0", "::", None) else serving.host
        self._url = f"http://{host}:{serving.port}"
        self._bootstrap_port = disagg.disaggregation_bootstrap_port if self._resources.role == "prefill" else None
        self._dp_rank = get_parallel().attn_dp_rank or 0

    def report(self) -> EngineReport:
        """The load at this moment."""
        held = self._resources
        self._gauges.show(held)
        lengths = [len(req.origin_input_ids) + len(req.output_ids) for req in self._unfinished()]
        geometry = held.paged.geometry
        counted = held.counters.snapshot()
        counts = counted["counts"]
        return EngineReport(
            engine_id=self._engine_id,
            role="prefill" if held.role == "prefill" else "decode",
            node_id=held.config.node_id,
            url=self._url,
            dp_rank=self._dp_rank,
            kv_path=held.config.path,
            bootstrap_port=self._bootstrap_port,
            seq=len(lengths),
            tok=sum(lengths),
            read_q_tokens=held.nic.node_queued_tokens(),
            free_kv_tokens=int(self._scheduler.token_to_kv_pool_allocator.available_size()),
            free_buffer_tokens=held.buffer.n_free_blocks * geometry.block_tokens,
            alpha_tokens=int(ALPHA_READ_S * (self._read_tokens_per_s() or UNLIMITED_READ_TOKENS_PER_S)),
            beta_tokens=int(BETA_COMPUTE_S * held.compute_rate.tokens_per_s),
            read_tokens_per_s=self._read_tokens_per_s(),
            compute_tokens_per_s=held.new_token_rate.measured_tokens_per_s,
            read_bytes=counts.get("read_bytes", 0),
            node_read_bytes=held.nic.node_bytes_read(),
            prompt_tokens=counts.get("prompt_tokens", 0),
            hit_tokens=counts.get("hit_blocks", 0) * geometry.block_tokens,
            fallbacks=sum(counted["fallbacks"].values()),
            sent_at_s=time.time(),
        )

    def _read_tokens_per_s(self) -> float | None:
        bandwidth = self._resources.nic.bandwidth_bytes_per_s
        if bandwidth is None:
            return self._resources.read_rate.measured_tokens_per_s
        geometry = self._resources.paged.geometry
        return bandwidth / (geometry.n_layers * geometry.token_bytes)

    def _unfinished(self) -> list[Any]:
        scheduler = self._scheduler
        if self._resources.role == "prefill":
            queue = scheduler.disagg_prefill_bootstrap_queue.queue
            groups: Iterable[list[Any]] = (queue, scheduler.waiting_queue, scheduler.disagg_prefill_inflight_queue)
            return _distinct(req for group in groups for req in list(group))
        staged = [
            waiting.req
            for queue in (scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue)
            for waiting in list(queue.queue)
        ]
        return _distinct([*staged, *list(scheduler.waiting_queue), *list(scheduler.running_batch.reqs)])


def _distinct(reqs: Iterable[Any]) -> list[Any]:
    return list({id(req): req for req in reqs}.values())

"""Upstream's first decode queue, reserving DRAM instead of device memory.

A request takes device memory only at admission, when its whole prompt is in the buffer (paper section 'why a DE buffer').
"""

import time
from typing import Any

import torch
from sglang.srt.disaggregation.base.conn import KVTransferDestination
from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeRequest
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_dualpath.decode.persistence import BlockPersistence, DecodedBlocks
from sglang_dualpath.decode.receiver import DecodeReceiver
from sglang_dualpath.decode.room import DecodeRoom
from sglang_dualpath.engine import resources as engine_resources
from sglang_dualpath.engine.activation import active_config
from sglang_dualpath.telemetry.plan import from_kv_hints


class DualPathPreallocQueue(DecodePreallocQueue):
    """Takes the place of upstream's class when `--kv-path` is given."""

    queue: list[DecodeRequest]
    pending_reqs: list[DecodeRequest]

    def _init_kv_manager(self) -> Any:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        self._resources = engine_resources.build(
            active_config(),
            "decode",
            self.token_to_kv_pool,
            self.scheduler.server_args,
            (parallel.attn_tp_rank, parallel.attn_tp_size),
        )
        self.persistence = BlockPersistence(self._resources, self.req_to_token_pool.req_to_token)
        return super()._init_kv_manager()

    def _create_receiver_and_enqueue(self, req: Any, is_rebootstrap: bool = False) -> DecodeRequest:
        decode_req = super()._create_receiver_and_enqueue(req, is_rebootstrap)
        if isinstance(decode_req.kv_receiver, DecodeReceiver):
            tokens = [*req.origin_input_ids, *req.output_ids][: self._pre_alloc_fill_len(req)]
            chain = self._resources.key_chain(req.extra_key)
            chain.extend(tokens)
            plan = from_kv_hints(req.kv_hints)
            self._resources.counters.add("requests_with_plan", plan is not None)
            decode_req.kv_receiver.attach(
                DecodeRoom(
                    room=req.bootstrap_room,
                    rid=req.rid,
                    bootstrap_addr=decode_req.kv_receiver.bootstrap_addr,
                    prompt_tokens=len(tokens),
                    chain=chain,
                    planned_share=None if plan is None else plan.share,
                )
            )
        return decode_req

    def pop_preallocated(
        self, rids_to_check: Any = None, pp_good_rids: Any = None, pp_bad_rids: Any = None
    ) -> tuple[list[DecodeRequest], list[DecodeRequest]]:
        """Reserve buffer for waiting requests, first come first served; returns (reserved, failed).

        Requests of upstream's fake transfer (its warm-up) take upstream's way.
        """
        self._resolve_pending_reqs()
        self._update_handshake_waiters(rids_to_check, pp_good_rids, pp_bad_rids)
        self._abort_dropped_transfers()
        failed = self._drop_failed()
        if self.scheduler.enable_priority_scheduling:
            sign = 1 if self.scheduler.schedule_low_priority_values_first else -1
            self.queue.sort(key=lambda waiting: waiting.req.priority * sign)
        reserved: list[DecodeRequest] = []
        for decode_req in list(self.queue):
            receiver = decode_req.kv_receiver
            if not isinstance(receiver, DecodeReceiver) or not decode_req.waiting_for_input:
                continue
            if self.req_to_metadata_buffer_idx_allocator.available_size() <= 0 or not receiver.reserve():
                break
            self._send_kv_metadata(
                decode_req, None, self.token_to_kv_pool_allocator.page_size, destination=KVTransferDestination.HOST
            )
            decode_req.host_staged = True
            self.queue.remove(decode_req)
            reserved.append(decode_req)
        more_reserved, more_failed = self._pop_others(rids_to_check)
        return reserved + more_reserved, failed + more_failed

    def _pop_others(self, rids_to_check: Any) -> tuple[list[DecodeRequest], list[DecodeRequest]]:
        ours = [waiting for waiting in self.queue if isinstance(waiting.kv_receiver, DecodeReceiver)]
        if len(ours) == len(self.queue):
            return [], []
        self.queue = [waiting for waiting in self.queue if not isinstance(waiting.kv_receiver, DecodeReceiver)]
        result = super().pop_preallocated(rids_to_check)
        self.queue = ours + self.queue
        return result

    def _abort_dropped_transfers(self) -> None:
        """Upstream lets an aborted transfer into host memory run to its end, which never comes when the prefill engine
        has dropped the request, or never had it: tell it, and wait for its acknowledgement instead."""
        for decode_req in self.scheduler.disagg_decode_transfer_queue.queue:
            receiver = decode_req.kv_receiver
            if not isinstance(receiver, DecodeReceiver) or receiver.room is None or receiver.room.aborted:
                continue
            if isinstance(decode_req.req.finished_reason, FINISH_ABORT):
                receiver.abort()

    def _drop_failed(self) -> list[DecodeRequest]:
        failed = [waiting for waiting in self.queue if isinstance(waiting.req.finished_reason, FINISH_ABORT)]
        for decode_req in failed:
            if not getattr(decode_req.req, "finished_output", False):
                self.scheduler.output_streamer.stream_output([decode_req.req], decode_req.req.return_logprob)
            decode_req.kv_receiver.clear()
            decode_req.kv_receiver = None
        if failed:
            gone = {id(decode_req) for decode_req in failed}
            self.queue = [waiting for waiting in self.queue if id(waiting) not in gone]
            self.pending_reqs = [waiting for waiting in self.pending_reqs if id(waiting) not in gone]
        return failed

    def _transfer_page_indices(self, decode_req: DecodeRequest, kv_indices: Any, page_size: int) -> Any:
        # The destination is the room's lease, which has no device pages yet.
        if isinstance(decode_req.kv_receiver, DecodeReceiver):
            return None
        return super()._transfer_page_indices(decode_req, kv_indices, page_size)

    def allocate_host_staged(self, decode_req: DecodeRequest) -> bool:
        """Admit a request whose prompt is complete in the buffer, once the device has room for it."""
        room = decode_req.kv_receiver.room
        if room.complete_at_s is None:
            room.complete_at_s = time.monotonic()
        if not super().allocate_host_staged(decode_req):
            return False
        self._admit(decode_req)
        self._resources.stages.observe("admit", time.monotonic() - room.complete_at_s)
        return True

    def _admit(self, decode_req: DecodeRequest) -> None:
        """Buffer to device, and what is new of the prompt to the store."""
        room = decode_req.kv_receiver.room
        req = decode_req.req
        lease = room.lease
        slots = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, : room.prompt_tokens].to(torch.int64)
        for layer in range(self._resources.paged.geometry.n_layers):
            rows = lease.layer_rows(layer, 0, lease.n_blocks)[: room.prompt_tokens]
            self._resources.paged.scatter(layer, slots, rows)
        req.dualpath_blocks = DecodedBlocks(room.chain, len(room.chain.keys))
        self.persistence.persist_prompt(room.chain, lease, room.ready_blocks)
        self._resources.counters.add("admitted_requests")

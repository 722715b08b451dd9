"""Persisting every full block of 64 tokens once: the prompt's at admission, the generated ones as they fill up."""

from dataclasses import dataclass
from typing import Any

import torch

from sglang_dualpath.blocks.key import BlockKey, BlockKeyChain
from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.engine.resources import EngineResources


@dataclass(slots=True)
class DecodedBlocks:
    """A running request's keys so far, and how many of its blocks have been handed to the writer."""

    chain: BlockKeyChain
    persisted_blocks: int


class BlockPersistence:
    """Feeds the writer; called by the decode scheduler's thread."""

    def __init__(self, resources: EngineResources, req_to_token: torch.Tensor) -> None:
        self._resources = resources
        self._req_to_token = req_to_token

    def persist_prompt(self, chain: BlockKeyChain, lease: BlockLease, known_blocks: int) -> None:
        """Write the prompt's full blocks out of the buffer; the first `known_blocks` were just read from the store."""
        if chain.namespace != self._resources.namespace:
            return
        keys = chain.keys
        for index in range(known_blocks, len(keys)):
            if not self._resources.writer.submit(keys[index], lease, index):
                self._resources.counters.fallback("persist_dropped", "the store's write queue is full")

    def persist_decoded(self, req: Any) -> None:
        """Write the blocks that a decode step has filled. Call before the step's token is appended: until then every
        token of the request has its KV in the pool."""
        blocks: DecodedBlocks | None = getattr(req, "dualpath_blocks", None)
        if blocks is None or blocks.chain.namespace != self._resources.namespace:
            return
        block_tokens = self._resources.paged.geometry.block_tokens
        n_kv_tokens = len(req.origin_input_ids) + len(req.output_ids)
        if n_kv_tokens // block_tokens <= blocks.persisted_blocks or req.kv.req_pool_idx is None:
            return
        seen = blocks.chain.n_tokens - len(req.origin_input_ids)
        blocks.chain.extend(req.output_ids[seen:])
        for index in range(blocks.persisted_blocks, len(blocks.chain.keys)):
            self._persist_from_pool(req, blocks.chain.keys[index], index)
        blocks.persisted_blocks = len(blocks.chain.keys)

    def _persist_from_pool(self, req: Any, key: BlockKey, index: int) -> None:
        geometry = self._resources.paged.geometry
        lease = self._resources.buffer.lease(1)
        if lease is None:
            self._resources.counters.fallback(
                "persist_no_buffer", "no free block in --kv-buffer-size for a decoded block"
            )
            return
        begin = index * geometry.block_tokens
        slots = self._req_to_token[req.kv.req_pool_idx, begin : begin + geometry.block_tokens].to(torch.int64)
        array = lease.array(0)
        for layer in range(geometry.n_layers):
            self._resources.paged.gather(layer, slots, array[layer])
        if self._resources.writer.submit(key, lease, 0):
            self._resources.counters.add("decoded_blocks")
        else:
            self._resources.counters.fallback("persist_dropped", "the store's write queue is full")
        lease.release()

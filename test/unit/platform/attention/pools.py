"""Upstream's own pools and layers, small, with a batch of a few sequences in them."""

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

PAGE_TOKENS = 4
SLOTS = 64 * PAGE_TOKENS
KV_HEADS, QUERY_HEADS, DIM = 2, 6, 16
LATENT, ROPE = 16, 8


def mha_pool() -> MHATokenToKVPool:
    return MHATokenToKVPool(
        size=SLOTS,
        page_size=PAGE_TOKENS,
        dtype=torch.float32,
        head_num=KV_HEADS,
        head_dim=DIM,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )


def mla_pool() -> MLATokenToKVPool:
    return MLATokenToKVPool(
        size=SLOTS,
        page_size=PAGE_TOKENS,
        dtype=torch.float32,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )


def mha_layer(layer_id: int = 1, **options: Any) -> RadixAttention:
    return RadixAttention(QUERY_HEADS, DIM, 0.25, KV_HEADS, layer_id, **options)


def mla_layer(layer_id: int = 1) -> RadixAttention:
    return RadixAttention(QUERY_HEADS, LATENT + ROPE, 0.2, 1, layer_id, v_head_dim=LATENT)


class Requests:
    """Requests whose pages lie scattered over a pool; gives the batches that upstream's scheduler would build."""

    def __init__(self, pages_of_requests: list[list[int]]) -> None:
        self.slots = torch.zeros(len(pages_of_requests), 16 * PAGE_TOKENS, dtype=torch.int32)
        for index, pages in enumerate(pages_of_requests):
            tokens = [page * PAGE_TOKENS + offset for page in pages for offset in range(PAGE_TOKENS)]
            self.slots[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def runner(self, pool: Any) -> Any:
        return SimpleNamespace(req_to_token_pool=SimpleNamespace(req_to_token=self.slots), token_to_kv_pool=pool)

    def batch(self, spans: list[tuple[int, int, int]], mode: ForwardMode = ForwardMode.EXTEND) -> Any:
        """(request, first new token, stop) each: computes tokens [first, stop) over all before them."""
        return SimpleNamespace(
            forward_mode=mode,
            spec_info=None,
            req_pool_indices=torch.tensor([request for request, _, _ in spans]),
            seq_lens_cpu=torch.tensor([stop for _, _, stop in spans]),
            extend_seq_lens_cpu=[stop - first for _, first, stop in spans],
            out_cache_loc=torch.cat([self.slots[request, first:stop].long() for request, first, stop in spans]),
        )

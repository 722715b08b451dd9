"""The attention backend: upstream's interface around the kernel."""

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from sglang_dualpath.platform.attention.kernel import attend
from sglang_dualpath.platform.attention.sequences import SequenceSpan, spans_of_batch


class PlainCpuAttention(AttentionBackend):
    """Extend and decode over paged pools, one sequence at a time: its result does not depend on its batch.

    Latent attention (MLA) comes in its absorbed form, see `registration.always_absorb`.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        # These two names are upstream's: models find the pools through their backend.
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._request_slots: torch.Tensor = self.req_to_token_pool.req_to_token
        self._pool = self.token_to_kv_pool
        self._page_tokens: int = self._pool.page_size
        self._is_latent = isinstance(self._pool, MLATokenToKVPool)
        self._has_window_pool = isinstance(self._pool, SWAKVPool) and self._pool.swa_layer_nums > 0
        self._spans: list[SequenceSpan] = []
        self._window_spans: list[SequenceSpan] = []
        self._window_write_slots: torch.Tensor | None = None

    def support_triton(self) -> bool:
        """There are no Triton kernels here."""
        return False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Find each sequence's pages, once for all layers."""
        mode = forward_batch.forward_mode
        if mode.is_target_verify() or forward_batch.spec_info is not None:
            raise NotImplementedError(
                "--attention-backend dualpath_cpu does not do speculative decoding; remove --speculative-algorithm"
            )
        tokens = forward_batch.seq_lens_cpu.tolist()
        rows = [1] * len(tokens) if mode.is_decode_or_idle() else list(forward_batch.extend_seq_lens_cpu)
        requests = forward_batch.req_pool_indices.tolist()
        self._spans = spans_of_batch(self._request_slots, requests, tokens, rows, self._page_tokens)
        if self._has_window_pool:
            self._init_window_metadata(forward_batch, requests, tokens, rows)

    def _init_window_metadata(
        self, forward_batch: Any, requests: list[int], tokens: list[int], rows: list[int]
    ) -> None:
        translate = self._pool.translate_loc_from_full_to_swa
        self._window_write_slots = translate(forward_batch.out_cache_loc)
        # Tokens that left the window have no slot of their own any more; their keys are never read.
        slots = translate(self._request_slots[requests, : max(tokens, default=0)]).clamp(min=0)
        self._window_spans = spans_of_batch(slots, range(len(requests)), tokens, rows, self._page_tokens)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> torch.Tensor:
        """q [rows, query_heads * dim] of all sequences' new tokens; returns [rows, query_heads * value_dim]."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, extra)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **extra: Any,
    ) -> torch.Tensor:
        """The same for one new token a sequence."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, extra)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        extra: dict[str, Any],
    ) -> torch.Tensor:
        _refuse_unsupported(layer, extra)
        if save_kv_cache and k is not None and v is not None:
            self._pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self._window_write_slots), k, v)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = query.new_empty((query.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        pool_keys = self._pool.get_key_buffer(layer.layer_id)
        pool_values = None if self._is_latent else self._pool.get_value_buffer(layer.layer_id)
        window = layer.sliding_window_size if layer.sliding_window_size > -1 else None
        for span in self._spans_of_layer(layer):
            keys = span.gather(pool_keys, self._page_tokens).to(query.dtype)
            # A latent row's head is its value; the rest of the product is dropped, which costs less than a copy.
            values = keys if pool_values is None else span.gather(pool_values, self._page_tokens).to(query.dtype)
            rows = slice(span.first_row, span.stop_row)
            masks = span.causal_masks(window) if layer.attn_type == AttentionType.DECODER else None
            result = attend(query[rows], keys, values, layer.scaling, masks, layer.logit_cap)
            output[rows] = result[..., : layer.v_head_dim]
        return output.view(query.shape[0], -1)

    def _spans_of_layer(self, layer: Any) -> list[SequenceSpan]:
        if self._has_window_pool and self._pool.layers_mapping[layer.layer_id][1]:
            return self._window_spans
        return self._spans


def _refuse_unsupported(layer: Any, extra: dict[str, Any]) -> None:
    asked = sorted(name for name, value in extra.items() if value is not None)
    if layer.is_cross_attention:
        asked.append("cross attention")
    if asked:
        raise NotImplementedError(
            f"--attention-backend dualpath_cpu does not do {', '.join(asked)}, which this model asks for; "
            "try --attention-backend torch_native"
        )

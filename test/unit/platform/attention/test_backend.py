"""The backend over upstream's pools: prefill whole or in chunks, alone or in a batch, then decode."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang_dualpath.platform.attention.backend import PlainCpuAttention

from test.unit.platform.attention import pools
from test.unit.platform.attention.pools import Requests
from test.unit.platform.attention.reference import attention

TOKENS = 30


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    """The latent pool asks upstream's context whether its tokens are spread over ranks."""
    with get_parallel().override(dcp_enabled=False):
        yield


@pytest.fixture
def requests() -> Requests:
    return Requests([[9, 3, 30, 31, 2, 17, 18, 40], [4, 5, 6, 7, 8, 10, 11, 12]])


class Sequence:
    """The query, key and value rows of one sequence in one layer."""

    def __init__(self, seed: int, latent: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        dim = pools.LATENT + pools.ROPE if latent else pools.DIM
        kv_heads = 1 if latent else pools.KV_HEADS
        self.query = torch.randn(TOKENS, pools.QUERY_HEADS, dim, generator=generator)
        self.keys = torch.randn(TOKENS, kv_heads, dim, generator=generator)
        self.values = (
            self.keys[..., : pools.LATENT] if latent else torch.randn(TOKENS, kv_heads, dim, generator=generator)
        )

    def expected(self, scaling: float, **options: Any) -> torch.Tensor:
        return attention(self.query, self.keys, self.values, scaling, **options)


def compute(
    backend: PlainCpuAttention,
    layer: Any,
    requests: Requests,
    sequences: list[Sequence],
    spans: list[tuple[int, int, int]],
    mode: ForwardMode = ForwardMode.EXTEND,
) -> list[torch.Tensor]:
    """One forward of a layer; the result of each span, [new tokens, query heads, value dim]."""
    batch = requests.batch(spans, mode)
    backend.init_forward_metadata(batch)
    query, keys, values = (
        torch.cat([getattr(sequences[request], name)[first:stop] for request, first, stop in spans])
        for name in ("query", "keys", "values")
    )
    result = backend.forward(query.flatten(1), keys, values, layer, batch)
    return list(result.unflatten(1, (pools.QUERY_HEADS, -1)).split([stop - first for _, first, stop in spans]))


@pytest.fixture(params=["mha", "mla"])
def parts(request: pytest.FixtureRequest, requests: Requests) -> tuple[PlainCpuAttention, Any, list[Sequence]]:
    latent = request.param == "mla"
    pool, layer = (pools.mla_pool(), pools.mla_layer()) if latent else (pools.mha_pool(), pools.mha_layer())
    return PlainCpuAttention(requests.runner(pool)), layer, [Sequence(seed, latent) for seed in (1, 2)]


def test_prefill_of_a_batch(requests: Requests, parts: Any) -> None:
    backend, layer, sequences = parts
    results = compute(backend, layer, requests, sequences, [(1, 0, TOKENS), (0, 0, 13)])
    torch.testing.assert_close(results[0].double(), sequences[1].expected(layer.scaling), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[1].double(), sequences[0].expected(layer.scaling)[:13], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunks", [(8, 20), (4, 5), (1, 29)])
def test_chunks_come_out_as_the_whole(requests: Requests, parts: Any, chunks: tuple[int, ...]) -> None:
    backend, layer, sequences = parts
    starts = (0, *chunks)
    results = [
        compute(backend, layer, requests, sequences, [(0, first, stop)])[0]
        for first, stop in zip(starts, (*chunks, TOKENS), strict=True)
    ]
    expected = sequences[0].expected(layer.scaling)
    torch.testing.assert_close(torch.cat(results).double(), expected, rtol=1e-4, atol=1e-5)


def test_decode_continues_prefill(requests: Requests, parts: Any) -> None:
    backend, layer, sequences = parts
    compute(backend, layer, requests, sequences, [(0, 0, 20), (1, 0, 9)])
    for step in range(5):
        spans = [(0, 20 + step, 21 + step), (1, 9 + step, 10 + step)]
        results = compute(backend, layer, requests, sequences, spans, ForwardMode.DECODE)
        for (request, position, _), result in zip(spans, results, strict=True):
            expected = sequences[request].expected(layer.scaling)[position : position + 1]
            torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_token_does_not_depend_on_its_batch(requests: Requests, parts: Any) -> None:
    backend, layer, sequences = parts
    compute(backend, layer, requests, sequences, [(0, 0, 29), (1, 0, 17)])
    (alone,) = compute(backend, layer, requests, sequences, [(0, 29, 30)], ForwardMode.DECODE)
    _, beside = compute(backend, layer, requests, sequences, [(1, 17, 18), (0, 29, 30)], ForwardMode.DECODE)
    assert torch.equal(alone, beside)


def test_a_token_does_not_depend_on_where_its_pages_lie() -> None:
    sequence = Sequence(3, latent=False)
    layer, results = pools.mha_layer(), []
    for pages in ([1, 2, 3, 4, 5, 6, 7, 8], [50, 3, 49, 1, 20, 7, 6, 5]):
        requests = Requests([pages])
        backend = PlainCpuAttention(requests.runner(pools.mha_pool()))
        results += compute(backend, layer, requests, [sequence], [(0, 0, TOKENS)])
    assert torch.equal(results[0], results[1])


def test_a_layer_with_a_window_and_a_cap(requests: Requests) -> None:
    backend, sequence = PlainCpuAttention(requests.runner(pools.mha_pool())), Sequence(4, latent=False)
    layer = pools.mha_layer(sliding_window_size=7, logit_cap=1.5)
    compute(backend, layer, requests, [sequence], [(0, 0, 25)])
    (result,) = compute(backend, layer, requests, [sequence], [(0, 25, TOKENS)])
    expected = sequence.expected(layer.scaling, window=7, logit_cap=1.5)[25:]
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


def test_speculative_decoding_is_refused(requests: Requests) -> None:
    backend = PlainCpuAttention(requests.runner(pools.mha_pool()))
    with pytest.raises(NotImplementedError, match="--speculative-algorithm"):
        backend.init_forward_metadata(requests.batch([(0, 0, 4)], ForwardMode.TARGET_VERIFY))


def test_what_it_does_not_compute_is_named(requests: Requests) -> None:
    backend, sequence = PlainCpuAttention(requests.runner(pools.mha_pool())), Sequence(5, latent=False)
    batch = requests.batch([(0, 0, 4)])
    backend.init_forward_metadata(batch)
    rows = [sequence.query[:4].flatten(1), sequence.keys[:4], sequence.values[:4]]
    with pytest.raises(NotImplementedError, match="does not do sinks"):
        backend.forward(*rows, pools.mha_layer(), batch, sinks=torch.zeros(6))
    with pytest.raises(NotImplementedError, match="cross attention"):
        backend.forward(*rows, pools.mha_layer(is_cross_attention=True), batch)

"""Spans join the client's, and engines join the router's; without a tracer the client's context still gets through."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sglang_dualpath.router.front import tracing

from test.unit.router.running_router import posted, routed_pair

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What would be exported."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    return exporter


@pytest.mark.asyncio
async def test_a_request_is_one_trace_from_client_to_engines(spans: InMemorySpanExporter) -> None:
    async with routed_pair() as (router, prefill, decode):
        headers = {"traceparent": PARENT, "x-request-id": "r7"}
        async with router.client.post(router.url + "/generate", json={"text": "a"}, headers=headers) as response:
            assert response.status == 200
        seen = {call.headers["traceparent"] for call in (*prefill.calls, *decode.calls)}
    finished = {span.name: span for span in spans.get_finished_spans()}
    assert set(finished) == {"dualpath.request", "dualpath.queue", "dualpath.serve"}
    assert {f"{span.context.trace_id:032x}" for span in finished.values()} == {TRACE_ID}
    request, serve = finished["dualpath.request"], finished["dualpath.serve"]
    assert request.attributes is not None
    assert request.attributes["dualpath.request_id"] == "r7"
    assert serve.parent is not None
    assert serve.parent.span_id == request.context.span_id
    assert seen == {f"00-{TRACE_ID}-{serve.context.span_id:016x}-01"}


@pytest.mark.asyncio
async def test_without_a_tracer_the_clients_context_reaches_the_engines() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    async with routed_pair() as (router, _prefill, decode):
        async with router.client.post(
            router.url + "/generate", json={"text": "a"}, headers={"traceparent": PARENT}
        ) as response:
            assert response.status == 200
        assert decode.calls[0].headers["traceparent"] == PARENT
        await posted(router, text="b")
        assert "traceparent" not in decode.calls[1].headers

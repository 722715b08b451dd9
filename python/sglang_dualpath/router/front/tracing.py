"""OpenTelemetry spans of a request, joined to the client's and, by the headers the engines get, to upstream's `--enable-trace`.

Without `--enable-trace` the API's own no-op tracer stands in, and the client's trace context still reaches the engines.
"""

import contextlib
from collections.abc import Iterator, Mapping

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACE_HEADERS = ("traceparent", "tracestate")

_tracer = trace.get_tracer("sglang_dualpath.router")
_propagator = TraceContextTextMapPropagator()


class TracingUnavailable(RuntimeError):
    """The packages that export spans are not installed."""


def export_to(endpoint: str) -> None:
    """Send spans to an OTLP gRPC endpoint from now on. Raises TracingUnavailable."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(f"--enable-trace needs pip install 'sglang-dualpath[trace]' ({error})") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "dualpath-router"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    trace.set_tracer_provider(provider)


@contextlib.contextmanager
def request_span(headers: Mapping[str, str], request_id: str, path: str) -> Iterator[Span]:
    """The span of a whole request, under the client's if it sent one."""
    context = _propagator.extract({name: headers[name] for name in TRACE_HEADERS if name in headers})
    attributes = {"dualpath.request_id": request_id, "url.path": path}
    with _tracer.start_as_current_span(
        "dualpath.request", context=context, kind=SpanKind.SERVER, attributes=attributes
    ) as span:
        yield span


@contextlib.contextmanager
def stage_span(name: str, **attributes: str | int | float) -> Iterator[Span]:
    """The span of one stage: `queue`, `serve`."""
    named = {f"dualpath.{key}": value for key, value in attributes.items()}
    with _tracer.start_as_current_span(f"dualpath.{name}", attributes=named) as span:
        yield span


def headers_for_engines() -> dict[str, str]:
    """The trace context that engines join."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier

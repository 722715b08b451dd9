"""An engine's load report to the router: msgpack over ZMQ, DEALER to ROUTER. A report is also a fetch (paper, scheduling)."""

from typing import Annotated, Literal

import msgspec

from sglang_dualpath.telemetry.engine_url import check_engine_url

REPORT_VERSION = 2
MAX_REPORT_BYTES = 64 * 2**10

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class EngineReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What one engine tells: seq_e, tok_e, read_q_n(e) and what room it has."""

    version: int = REPORT_VERSION
    engine_id: str
    role: Literal["prefill", "decode"]
    node_id: str
    url: str
    dp_rank: Count
    kv_path: Literal["prefill", "dual"]
    bootstrap_port: Port | None
    seq: Count
    """Unfinished requests."""
    tok: Count
    """Their tokens."""
    read_q_tokens: Count
    """Tokens waiting in the node's storage read queue."""
    free_kv_tokens: Count
    free_buffer_tokens: Count
    alpha_tokens: Count
    """Tokens the node reads in 3 s: a queue up to this counts as short."""
    beta_tokens: Count
    """Tokens the engine computes in 5 s: more unfinished ones count as overload."""
    read_tokens_per_s: Positive | None = None
    """What the node's storage delivers; None when unlimited or unknown."""
    compute_tokens_per_s: Positive | None = None
    """New prompt tokens the engine computes a second; None before the first forward."""
    read_bytes: Count = 0
    """Bytes of hit blocks this engine has read from the store since it started."""
    node_read_bytes: Count = 0
    """All bytes that have come through the node's storage NIC."""
    prompt_tokens: Count = 0
    """Of all requests so far (decode engines)."""
    hit_tokens: Count = 0
    """Of those, what the store held."""
    fallbacks: Count = 0
    """Times this engine did less than planned."""
    sent_at_s: float


class ReportAck(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """The router's answer to a report."""

    version: int = REPORT_VERSION
    sequence: int


_report_decoder: msgspec.msgpack.Decoder[EngineReport] = msgspec.msgpack.Decoder(EngineReport)
_ack_decoder: msgspec.msgpack.Decoder[ReportAck] = msgspec.msgpack.Decoder(ReportAck)


def encode(message: EngineReport | ReportAck) -> bytes:
    """The message as msgpack."""
    return msgspec.msgpack.encode(message)


def decode_report(data: bytes) -> EngineReport:
    """The report in `data`. Raises ValueError on anything malformed, too large, or of another version."""
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(f"a report of {len(data)} bytes exceeds {MAX_REPORT_BYTES}")
    try:
        report = _report_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"malformed report: {error}") from None
    if report.version != REPORT_VERSION:
        raise ValueError(f"report version {report.version}, expected {REPORT_VERSION}")
    try:
        check_engine_url(report.url)
    except ValueError as error:
        raise ValueError(f"malformed report: {error}") from None
    return report


def decode_ack(data: bytes) -> ReportAck:
    """The acknowledgement in `data`. Raises ValueError on anything malformed."""
    try:
        return _ack_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"malformed acknowledgement: {error}") from None

"""Load reports: what goes in comes out; anything else is a ValueError, never another exception."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.telemetry.report import (
    MAX_REPORT_BYTES,
    REPORT_VERSION,
    EngineReport,
    ReportAck,
    decode_ack,
    decode_report,
    encode,
)

counts = st.integers(0, 2**62)

reports = st.builds(
    EngineReport,
    engine_id=st.text(min_size=1, max_size=40),
    role=st.sampled_from(["prefill", "decode"]),
    node_id=st.text(max_size=40),
    url=st.integers(1, 65535).map(lambda port: f"http://10.0.0.1:{port}"),
    dp_rank=st.integers(0, 1024),
    kv_path=st.sampled_from(["prefill", "dual"]),
    bootstrap_port=st.none() | st.integers(1, 65535),
    seq=counts,
    tok=counts,
    read_q_tokens=counts,
    free_kv_tokens=counts,
    free_buffer_tokens=counts,
    alpha_tokens=counts,
    beta_tokens=counts,
    sent_at_s=st.floats(0, 1e12),
)

A_REPORT = EngineReport(
    engine_id="e",
    role="decode",
    node_id="n",
    url="http://127.0.0.1:30001",
    dp_rank=0,
    kv_path="dual",
    bootstrap_port=None,
    seq=1,
    tok=100,
    read_q_tokens=64,
    free_kv_tokens=1000,
    free_buffer_tokens=500,
    alpha_tokens=300,
    beta_tokens=400,
    sent_at_s=1.0,
)


def changed(**fields: object) -> bytes:
    """A report on the wire in which some fields are replaced, by anything."""
    return msgspec.msgpack.encode({**msgspec.to_builtins(A_REPORT), **fields})


@given(reports)
def test_a_report_survives_the_wire(report: EngineReport) -> None:
    assert decode_report(encode(report)) == report


@given(st.integers(0, 2**62))
def test_an_acknowledgement_survives_the_wire(sequence: int) -> None:
    assert decode_ack(encode(ReportAck(sequence=sequence))) == ReportAck(sequence=sequence)


@given(st.binary(max_size=400))
def test_random_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_report(data)
    with pytest.raises(ValueError):
        decode_ack(data)


@given(st.data())
def test_a_damaged_report_is_a_report_or_a_value_error(data: st.DataObject) -> None:
    wire = bytearray(encode(A_REPORT))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded: object = decode_report(bytes(wire))
    except ValueError as error:
        decoded = error
    assert isinstance(decoded, EngineReport | ValueError)


def test_an_acknowledgement_is_not_a_report() -> None:
    with pytest.raises(ValueError, match="malformed report"):
        decode_report(encode(ReportAck(sequence=1)))


def test_a_report_of_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match=f"report version {REPORT_VERSION + 1}, expected {REPORT_VERSION}"):
        decode_report(changed(version=REPORT_VERSION + 1))


def test_a_report_larger_than_the_bound_is_refused_unread() -> None:
    with pytest.raises(ValueError, match=f"exceeds {MAX_REPORT_BYTES}"):
        decode_report(changed(engine_id="x" * MAX_REPORT_BYTES))


def test_a_newer_engine_may_tell_more_than_this_version_knows() -> None:
    assert decode_report(changed(a_field_of_the_future=[1, {"x": 2}])) == A_REPORT


def test_nesting_deeper_than_the_stack_is_a_value_error() -> None:
    nested = b"\x91" * 60_000 + b"\x90"
    wire = changed(a_field_of_the_future=None)
    assert wire.endswith(b"\xc0")
    with pytest.raises(ValueError):
        decode_report(wire[:-1] + nested)


@pytest.mark.parametrize(
    "field",
    ["dp_rank", "seq", "tok", "read_q_tokens", "free_kv_tokens", "free_buffer_tokens", "alpha_tokens", "beta_tokens"],
)
def test_a_negative_count_is_refused_by_the_name_of_its_field(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        decode_report(changed(**{field: -1}))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1:30000",
        "file:///etc/passwd",
        "http://",
        "http://10.0.0.1:99999",
        "http://a..b:30000",
        "http://[::1",
    ],
)
def test_a_url_that_cannot_be_an_engine_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        decode_report(changed(url=url))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_bootstrap_port_that_cannot_be_one_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="bootstrap_port"):
        decode_report(changed(bootstrap_port=port))


@pytest.mark.parametrize(("field", "value"), [("role", "router"), ("kv_path", "both"), ("seq", "1"), ("tok", 1.5)])
def test_a_value_of_the_wrong_kind_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        decode_report(changed(**{field: value}))

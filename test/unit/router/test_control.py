"""The control socket: reports are taken and acknowledged, everything else is dropped, counted and survived."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
import zmq.auth
from sglang_dualpath.router import curve
from sglang_dualpath.router.control import ControlSocket
from sglang_dualpath.telemetry.report import MAX_REPORT_BYTES, EngineReport, ReportAck, decode_ack, encode

from test.unit.router.running_router import report_of
from test.unit.router.stub_engine import until

pytestmark = pytest.mark.asyncio

A_REPORT = report_of("http://127.0.0.1:30000", "prefill")


class Control:
    """A control socket at work, and what it has said."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.reports: list[EngineReport] = []
        self.n_malformed = 0
        self.context = zmq.asyncio.Context()
        self.socket = ControlSocket(endpoint, self.take, self.count)
        self.task = asyncio.create_task(self.socket.run())

    def take(self, report: EngineReport) -> None:
        """Note a report; one from a certain node is too much for its taker."""
        if report.node_id == "trouble":
            raise RuntimeError("no")
        self.reports.append(report)

    def count(self) -> None:
        """Count a message that was dropped."""
        self.n_malformed += 1

    def engine(self) -> zmq.asyncio.Socket:
        """A connection as engines make it."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.endpoint)
        return socket


@pytest_asyncio.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    running = Control(f"ipc://{tmp_path}/control")
    yield running
    running.task.cancel()
    await asyncio.gather(running.task, return_exceptions=True)
    running.socket.close()
    running.context.destroy(linger=0)


async def acknowledged(engine: zmq.asyncio.Socket, report: EngineReport = A_REPORT) -> ReportAck:
    """The answer to a report."""
    await engine.send(encode(report))
    async with asyncio.timeout(30):
        return decode_ack(await engine.recv())


async def test_a_report_is_taken_and_acknowledged(control: Control) -> None:
    assert await acknowledged(control.engine()) == ReportAck(sequence=1)
    assert control.reports == [A_REPORT]


async def test_every_engine_gets_the_acknowledgement_of_its_own_report(control: Control) -> None:
    engines = [control.engine() for _ in range(3)]
    acks = [await acknowledged(engine) for engine in engines]
    assert [ack.sequence for ack in acks] == [1, 2, 3]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x00"],
        [b"\x80\x04K\x01."],  # a pickle
        [b"{}"],
        [b"\xff" * 1000],
        [encode(ReportAck(sequence=1))],
        [encode(A_REPORT)[:-1]],
        [encode(A_REPORT) + b"\x00"],
        [b"", encode(A_REPORT)],
        [encode(A_REPORT), b""],
        [b"x"] * 50,
        [msgspec.msgpack.encode({**msgspec.to_builtins(A_REPORT), "x": None})[:-1] + b"\x91" * 60_000 + b"\x90"],
        [msgspec.msgpack.encode({**msgspec.to_builtins(A_REPORT), "url": "http://a..b:1"})],
        [encode(A_REPORT).replace(b"127.0.0.1", b"127.0.0.\xff")],
    ],
    ids=[
        "empty",
        "zero",
        "pickle",
        "json",
        "noise",
        "acknowledgement",
        "cut",
        "longer",
        "empty frame before",
        "empty frame after",
        "many frames",
        "deep",
        "no host",
        "no utf-8",
    ],
)
async def test_what_is_no_report_is_dropped_counted_and_survived(control: Control, frames: list[bytes]) -> None:
    engine = control.engine()
    await engine.send_multipart(frames)
    assert await acknowledged(engine) == ReportAck(sequence=1)
    assert control.reports == [A_REPORT]
    assert control.n_malformed == 1


async def test_random_bytes_are_dropped_counted_and_survived(control: Control) -> None:
    engine = control.engine()
    for i in range(200):
        await engine.send(bytes((i * j * 31 + 7) % 256 for j in range(i)))
    assert await acknowledged(engine) == ReportAck(sequence=1)
    assert control.n_malformed == 200


async def test_a_message_over_the_bound_never_arrives_and_others_do(control: Control) -> None:
    oversized = control.engine()
    assert await acknowledged(oversized) == ReportAck(sequence=1)
    control.reports.clear()
    await oversized.send(b"x" * (MAX_REPORT_BYTES + 1))
    await asyncio.sleep(0.2)
    assert await acknowledged(control.engine()) == ReportAck(sequence=2)
    assert control.reports == [A_REPORT]
    assert control.n_malformed == 0


async def test_a_report_its_taker_fails_on_does_not_end_the_socket(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    engine = control.engine()
    await engine.send(encode(report_of(A_REPORT.url, "prefill", node_id="trouble")))
    await acknowledged(engine)
    assert control.reports == [A_REPORT]
    assert "RuntimeError: no" in caplog.text


async def test_an_engine_that_is_gone_before_its_acknowledgement_does_no_harm(control: Control) -> None:
    engine = control.engine()
    for _ in range(20):
        await engine.send(encode(A_REPORT))
    await until(lambda: len(control.reports) > 0)
    engine.close(linger=0)
    await acknowledged(control.engine())
    assert not control.task.done()


async def test_an_endpoint_in_use_is_an_error_at_once() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as holder:
        port = holder.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(zmq.ZMQError, match="in use"):
            ControlSocket(f"tcp://127.0.0.1:{port}", lambda _: None, lambda: None)


# ---- with a key


async def test_only_engines_that_hold_the_routers_public_key_are_heard(tmp_path: Path) -> None:
    curve.main([str(tmp_path / "keys")])
    secret = tmp_path / "keys" / "router.key_secret"
    assert secret.stat().st_mode & 0o077 == 0
    public, _ = zmq.auth.load_certificate(secret)
    reports: list[EngineReport] = []
    endpoint = f"ipc://{tmp_path}/control"
    control = ControlSocket(endpoint, reports.append, lambda: None, secret)
    task = asyncio.create_task(control.run())
    context = zmq.asyncio.Context()
    try:
        engines = {}
        for name, key in (("knows", public), ("guesses", zmq.curve_keypair()[0]), ("has none", None)):
            engines[name] = context.socket(zmq.DEALER)
            engines[name].setsockopt(zmq.LINGER, 0)
            if key is not None:
                engines[name].curve_publickey, engines[name].curve_secretkey = zmq.curve_keypair()
                engines[name].curve_serverkey = key
            engines[name].connect(endpoint)
        for name in ("has none", "guesses"):
            await engines[name].send(encode(report_of(f"http://{name.replace(' ', '-')}:1", "prefill")))
        assert await acknowledged(engines["knows"]) == ReportAck(sequence=1)
        assert reports == [A_REPORT]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        control.close()
        context.destroy(linger=0)


async def test_a_file_without_a_secret_key_is_an_error_at_once(tmp_path: Path) -> None:
    curve.main([str(tmp_path)])
    with pytest.raises(ValueError, match="no secret key"):
        ControlSocket(f"ipc://{tmp_path}/control", lambda _: None, lambda: None, tmp_path / "router.key")

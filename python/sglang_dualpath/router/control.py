"""The control socket: engines report here. Input is msgpack, typed, bounded in size, and never unpickled."""

import logging
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio
import zmq.auth

from sglang_dualpath.telemetry.report import MAX_REPORT_BYTES, EngineReport, ReportAck, decode_report, encode

logger = logging.getLogger(__name__)


class ControlKeyError(ValueError):
    """A file that is no CURVE secret key."""


def _load_key(path: Path) -> tuple[bytes, bytes]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ControlKeyError(f"{path} is no key file ({error})") from None
    if secret is None:
        raise ControlKeyError(f"{path} holds no secret key; name the file that ends in .key_secret")
    return public, secret


class ControlSocket:
    """A ZMQ ROUTER socket on the event loop. Raises zmq.ZMQError where it cannot bind, ControlKeyError for a
    `curve_secret` that is no key file."""

    def __init__(
        self,
        endpoint: str,
        on_report: Callable[[EngineReport], None],
        on_malformed: Callable[[], None],
        curve_secret: Path | None = None,
    ) -> None:
        self._on_report = on_report
        self._on_malformed = on_malformed
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_REPORT_BYTES)
        if curve_secret is not None:
            public, secret = _load_key(curve_secret)
            self._socket.curve_server = True
            self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.bind(endpoint)
        self._received = 0

    async def run(self) -> None:
        """Take reports until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                if len(frames) != 2:
                    raise ValueError(f"{len(frames)} frames instead of 2")
                report = decode_report(frames[1])
            except ValueError as error:
                self._on_malformed()
                logger.warning("dropped a control message: %s", error)
                continue
            try:
                self._on_report(report)
            except Exception:
                # One report's trouble must not make the router deaf to all others.
                logger.exception("could not take the report of %s", report.url)
                continue
            self._received += 1
            await self._socket.send_multipart([frames[0], encode(ReportAck(sequence=self._received))])

    def close(self) -> None:
        """Unbind."""
        self._socket.close(linger=0)
        self._context.term()

"""What a front process and the core say to each other: msgpack over a Unix socket, each message after its length."""

import asyncio
from typing import Any

import msgspec

from sglang_dualpath.router.front.placement import Ended, Finished, Outcome, Placement

MAX_MESSAGE_BYTES = 2**20
"""A request with all its keys takes 20 KB."""

_LENGTH_BYTES = 4


class Place(msgspec.Struct, frozen=True, kw_only=True, tag="place"):
    """Front to core: find engines for a request; `scheduling.request.Request`, but for its id."""

    ref: int
    prompt_tokens: int
    arrived_s: float
    keys: tuple[int, ...]
    output_tokens: int
    priority: int
    read_side: str | None
    passed_over: tuple[str, ...]


class GiveUp(msgspec.Struct, frozen=True, kw_only=True, tag="give_up"):
    """Front to core: the client of this request is gone."""

    ref: int


class PrefillDone(msgspec.Struct, frozen=True, kw_only=True, tag="prefill_done"):
    """Front to core."""

    ticket: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Front to core."""

    ended: Ended


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Front to core."""

    finished: Finished


class Placed(msgspec.Struct, frozen=True, kw_only=True, tag="placed"):
    """Core to front: the answer to `Place`."""

    ref: int
    placement: Placement


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Core to front: the other answer."""

    ref: int
    outcome: Outcome
    message: str


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """Core to front: a server has been found dead."""

    url: str


ToCore = Place | GiveUp | PrefillDone | End | Note
ToFront = Placed | Refused | Lost

_encoder = msgspec.msgpack.Encoder()
to_core: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
to_front: msgspec.msgpack.Decoder[ToFront] = msgspec.msgpack.Decoder(ToFront)


def send(writer: asyncio.StreamWriter, message: Any) -> None:
    """Queue a message."""
    data = _encoder.encode(message)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


async def receive(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None at the end. Raises ValueError for one that is too long."""
    try:
        n_bytes = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if n_bytes > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {n_bytes} bytes exceeds {MAX_MESSAGE_BYTES}")
        return await reader.readexactly(n_bytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

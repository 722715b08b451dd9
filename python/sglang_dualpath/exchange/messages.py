"""The typed messages between a decode and a prefill engine; msgpack over upstream's rendezvous sockets.

Decode to prefill: `PeerHello` once a pair, then per request `Destination` and `ReadProgress`. Prefill to decode, upstream's
own status and abort messages serve (`CommonKVManager.send_kv_status_message`, `AbortNotification`, `AbortAck`).
"""

from typing import Annotated

import msgspec

FRAME_TAG = b"DUALPATH"
"""First frame of every multipart message of ours, so that upstream's own frames pass by."""

MAX_MESSAGE_BYTES = 16 * 2**20
"""More than a destination of a million tokens needs; anything larger is refused unread."""

PROTOCOL_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class PeerHello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """What a decode engine is: sent once to each prefill engine it pairs with."""

    version: int = PROTOCOL_VERSION
    session: str
    """The transport session that owns the decode engine's buffer (`Transport.session`)."""
    tp_size: Positive
    aux_addresses: list[Count]
    """Base addresses of the metadata buffers, in upstream's order (`MetadataBuffers.get_buf_infos`)."""
    aux_item_bytes: list[Count]
    """One a metadata buffer: bytes of a row."""


class Destination(msgspec.Struct, frozen=True, kw_only=True, tag="destination"):
    """Where one request's KV goes and what of it is cached: the decode engine's reservation and the read plan."""

    version: int = PROTOCOL_VERSION
    room: int
    session: str
    endpoint: str
    port: Port
    aux_index: Count
    prompt_tokens: Positive
    block_addresses: list[Count]
    """One address a 64-token block of the prompt, the last block maybe partly filled."""
    hit_blocks: Count
    """Leading blocks present in the store."""
    decode_read_blocks: Count
    """Of those, the leading ones that the decode engine reads; the prefill engine reads the rest."""
    last_hit_key: bytes
    """Key of block `hit_blocks - 1`, empty without a hit: proves that both sides mean the same blocks."""


class ReadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """The decode side's read has ended with `ready_blocks` good leading blocks, of `decode_read_blocks` promised."""

    room: int
    ready_blocks: Count


Message = PeerHello | Destination | ReadProgress

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> list[bytes]:
    """The multipart frames of a message."""
    return [FRAME_TAG, _encoder.encode(message)]


def decode(frames: list[bytes]) -> Message:
    """The message in multipart frames whose first is FRAME_TAG. Raises ValueError on anything malformed."""
    if len(frames) != 2 or frames[0] != FRAME_TAG:
        raise ValueError("not a DualPath message")
    if len(frames[1]) > MAX_MESSAGE_BYTES:
        raise ValueError(f"message of {len(frames[1])} bytes exceeds {MAX_MESSAGE_BYTES}")
    try:
        message = _decoder.decode(frames[1])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"malformed DualPath message: {error}") from None
    if isinstance(message, PeerHello | Destination) and message.version != PROTOCOL_VERSION:
        raise ValueError(f"DualPath protocol version {message.version}, expected {PROTOCOL_VERSION}")
    if isinstance(message, Destination):
        _check_destination(message)
    elif isinstance(message, PeerHello) and len(message.aux_addresses) != len(message.aux_item_bytes):
        raise ValueError("a hello's aux_addresses and aux_item_bytes must be of one length")
    return message


def _check_destination(message: Destination) -> None:
    if not 0 <= message.decode_read_blocks <= message.hit_blocks <= len(message.block_addresses):
        raise ValueError("a destination's blocks must satisfy 0 <= decode_read <= hit <= addresses")
    if (message.hit_blocks == 0) != (message.last_hit_key == b""):
        raise ValueError("a destination's last_hit_key must be there exactly when hit_blocks is not 0")

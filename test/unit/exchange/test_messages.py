"""Messages between engines: what goes in comes out; anything else is a ValueError, never another exception."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.exchange.messages import (
    FRAME_TAG,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Destination,
    Message,
    PeerHello,
    ReadProgress,
    decode,
    encode,
)

addresses = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**31)


@st.composite
def destinations(draw: st.DrawFn) -> Destination:
    """Any destination that keeps its own rules."""
    blocks = draw(st.lists(addresses, min_size=1, max_size=8))
    hit = draw(st.integers(0, len(blocks)))
    return Destination(
        room=draw(st.integers(0, 2**63 - 1)),
        session=draw(st.text(max_size=30)),
        endpoint=draw(st.text(max_size=30)),
        port=draw(st.integers(1, 65535)),
        aux_index=draw(counts),
        prompt_tokens=draw(st.integers(1, 2**20)),
        block_addresses=blocks,
        hit_blocks=hit,
        decode_read_blocks=draw(st.integers(0, hit)),
        last_hit_key=draw(st.binary(min_size=32, max_size=32)) if hit else b"",
    )


hellos = st.builds(
    lambda session, tp_size, aux: PeerHello(
        session=session,
        tp_size=tp_size,
        aux_addresses=[address for address, _ in aux],
        aux_item_bytes=[n_bytes for _, n_bytes in aux],
    ),
    session=st.text(max_size=30),
    tp_size=st.integers(1, 64),
    aux=st.lists(st.tuples(addresses, counts), max_size=4),
)
progress = st.builds(ReadProgress, room=st.integers(0, 2**63 - 1), ready_blocks=counts)
messages = st.one_of(destinations(), hellos, progress)

A_DESTINATION = Destination(
    room=7,
    session="127.0.0.1:15000",
    endpoint="127.0.0.1",
    port=9000,
    aux_index=3,
    prompt_tokens=130,
    block_addresses=[4096, 8192, 12288],
    hit_blocks=2,
    decode_read_blocks=1,
    last_hit_key=b"k" * 32,
)


def changed(message: Message, **fields: object) -> list[bytes]:
    """The frames of a message in which some fields are replaced, by anything."""
    encoded = msgspec.msgpack.decode(encode(message)[1])
    return [FRAME_TAG, msgspec.msgpack.encode({**encoded, **fields})]


@given(messages)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
def test_random_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode([FRAME_TAG, data])


@given(st.lists(st.binary(max_size=20), max_size=4).filter(lambda frames: frames[:1] != [FRAME_TAG]))
def test_frames_without_the_tag_are_not_ours(frames: list[bytes]) -> None:
    with pytest.raises(ValueError, match="not a DualPath message"):
        decode(frames)


def test_a_tag_alone_or_with_more_than_one_body_is_refused() -> None:
    body = encode(A_DESTINATION)[1]
    for frames in ([FRAME_TAG], [FRAME_TAG, body, body]):
        with pytest.raises(ValueError, match="not a DualPath message"):
            decode(frames)


@given(messages, st.data())
def test_a_damaged_message_is_a_message_or_a_value_error(message: Message, data: st.DataObject) -> None:
    wire = bytearray(encode(message)[1])
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded: object = decode([FRAME_TAG, bytes(wire)])
    except ValueError as error:
        decoded = error
    assert isinstance(decoded, PeerHello | Destination | ReadProgress | ValueError)


@given(messages, st.data())
def test_a_message_cut_short_is_a_value_error(message: Message, data: st.DataObject) -> None:
    wire = encode(message)[1]
    with pytest.raises(ValueError):
        decode([FRAME_TAG, wire[: data.draw(st.integers(0, len(wire) - 1))]])


def test_a_message_larger_than_the_bound_is_refused_unread() -> None:
    with pytest.raises(ValueError, match=f"exceeds {MAX_MESSAGE_BYTES}"):
        decode([FRAME_TAG, b"\xc0" * (MAX_MESSAGE_BYTES + 1)])


def test_nesting_deeper_than_the_stack_is_a_value_error() -> None:
    frames = changed(ReadProgress(room=1, ready_blocks=1), a_field_of_the_future=None)
    assert frames[1].endswith(b"\xc0")
    with pytest.raises(ValueError):
        decode([FRAME_TAG, frames[1][:-1] + b"\x91" * 100_000 + b"\x90"])


@pytest.mark.parametrize(
    "message", [A_DESTINATION, PeerHello(session="s", tp_size=1, aux_addresses=[], aux_item_bytes=[])]
)
def test_another_protocol_version_is_refused_by_its_number(message: Message) -> None:
    with pytest.raises(ValueError, match=f"version {PROTOCOL_VERSION + 1}, expected {PROTOCOL_VERSION}"):
        decode(changed(message, version=PROTOCOL_VERSION + 1))


@pytest.mark.parametrize(
    ("hit", "decode_read", "key"), [(4, 0, b"k" * 32), (1, 2, b"k" * 32), (2, -1, b"k" * 32), (-1, -1, b"")]
)
def test_a_destination_whose_block_counts_contradict_each_other_is_refused(
    hit: int, decode_read: int, key: bytes
) -> None:
    with pytest.raises(ValueError, match=r"hit_blocks|decode_read"):
        decode(changed(A_DESTINATION, hit_blocks=hit, decode_read_blocks=decode_read, last_hit_key=key))


@pytest.mark.parametrize(("hit", "key"), [(0, b"k" * 32), (2, b"")])
def test_a_hit_comes_with_its_key_and_no_hit_without_one(hit: int, key: bytes) -> None:
    with pytest.raises(ValueError, match="last_hit_key"):
        decode(changed(A_DESTINATION, hit_blocks=hit, decode_read_blocks=0, last_hit_key=key))


@pytest.mark.parametrize(
    ("field", "value"),
    [("aux_index", -1), ("prompt_tokens", 0), ("port", 0), ("port", 65536), ("room", "7"), ("block_addresses", [-1])],
)
def test_a_destination_with_an_impossible_number_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        decode(changed(A_DESTINATION, **{field: value}))


def test_negative_progress_is_refused() -> None:
    with pytest.raises(ValueError, match="ready_blocks"):
        decode(changed(ReadProgress(room=1, ready_blocks=1), ready_blocks=-3))


def test_a_hello_whose_metadata_buffers_do_not_pair_up_is_refused() -> None:
    hello = PeerHello(session="s", tp_size=1, aux_addresses=[1, 2], aux_item_bytes=[8, 8])
    with pytest.raises(ValueError, match="aux"):
        decode(changed(hello, aux_item_bytes=[8]))

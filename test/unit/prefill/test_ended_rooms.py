"""What is remembered of rooms that ended with one half missing."""

from sglang_dualpath.prefill.ended_rooms import EndedRooms


def test_the_first_reason_is_given_once() -> None:
    ended = EndedRooms()
    ended.remember(1, "first")
    ended.remember(1, "second")
    assert ended.take(1) == "first"
    assert ended.take(1) is None


def test_the_oldest_goes_when_it_is_full() -> None:
    ended = EndedRooms(capacity=2)
    for room in (1, 2, 3):
        ended.remember(room, str(room))
    assert [ended.take(room) for room in (1, 2, 3)] == [None, "2", "3"]

"""The queue: by priority, then by arrival, and anyone may leave it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.waiting import WaitingQueue

from test.unit.router.scheduling.engines import request


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=50))
def test_it_is_served_by_priority_then_arrival(arrivals: list[tuple[int, bool]]) -> None:
    queue = WaitingQueue()
    for index, (priority, _) in enumerate(arrivals):
        queue.add(request(str(index), 10, priority=priority, output_tokens=1))
    for index, (_, leaves) in enumerate(arrivals):
        if leaves:
            assert queue.remove(str(index)) is not None
            assert queue.remove(str(index)) is None
    staying = [index for index, (_, leaves) in enumerate(arrivals) if not leaves]
    assert len(queue) == len(staying)
    assert queue.tokens == 11 * len(staying)
    served = []
    while (head := queue.head()) is not None:
        served.append(int(head.request_id))
        queue.remove(head.request_id)
    assert served == sorted(staying, key=lambda index: (-arrivals[index][0], index))


def test_an_id_waits_once_and_may_come_again_after_it_left() -> None:
    queue = WaitingQueue()
    queue.add(request("a"))
    with pytest.raises(ValueError, match="waits already"):
        queue.add(request("a"))
    queue.remove("a")
    queue.add(request("b"))
    queue.add(request("a"))
    head = queue.head()
    assert head is not None
    assert head.request_id == "b"


def test_one_that_comes_back_has_its_old_place() -> None:
    queue = WaitingQueue()
    first = request("a")
    queue.add(first)
    place = queue.place("a")
    queue.remove("a")
    queue.add(request("b"))
    queue.add(first, place)
    assert queue.head() is first


def test_those_who_left_are_not_remembered_behind_a_head_that_stays() -> None:
    queue = WaitingQueue()
    queue.add(request("head", priority=1))
    for index in range(1000):
        queue.add(request(str(index)))
        queue.remove(str(index))
    assert len(queue._heap) < 100
    assert queue.head() is not None

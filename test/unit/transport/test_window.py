"""Pieces through an engine that ends each in its own time, or refuses it."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.transport.window import DONE, FAILED, PIECES_UNDER_WAY, UNDER_WAY, move_pieces

REFUSED = "refused"


class ScriptedEngine:
    """An engine whose piece i is UNDER_WAY for `delays[i]` questions, then `ends[i]`; REFUSED pieces never start."""

    def __init__(self, ends: list[int | str], delays: list[int]) -> None:
        self.ends = ends
        self.delays = deque(delays)
        self.under_way: dict[int, tuple[int, int]] = {}
        self.started: list[int] = []
        self.most_under_way = 0

    def submit(self, piece: int) -> int:
        """Start a piece; its ticket is piece + 1."""
        self.started.append(piece)
        if self.ends[piece] == REFUSED:
            return 0
        self.under_way[piece + 1] = (piece, self.delays[piece])
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return piece + 1

    def status(self, ticket: int) -> int:
        """Raises KeyError for a ticket whose end was told: the real engine has freed it."""
        piece, delay = self.under_way[ticket]
        if delay:
            self.under_way[ticket] = piece, delay - 1
            return UNDER_WAY
        del self.under_way[ticket]
        end = self.ends[piece]
        assert isinstance(end, int)
        return end


@given(st.data())
def test_whatever_becomes_of_the_pieces_none_is_under_way_at_the_end(data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.sampled_from([DONE, DONE, DONE, FAILED, REFUSED]), max_size=60))
    delays = data.draw(st.lists(st.integers(0, 3), min_size=len(ends), max_size=len(ends)))
    engine = ScriptedEngine(ends, delays)
    arrived = move_pieces(len(ends), engine.submit, engine.status)
    assert arrived == all(end == DONE for end in ends)
    assert not engine.under_way
    assert engine.most_under_way <= PIECES_UNDER_WAY
    assert engine.started == list(range(len(engine.started)))
    if arrived:
        assert len(engine.started) == len(ends)


def test_without_pieces_there_is_nothing_to_wait_for() -> None:
    engine = ScriptedEngine([], [])
    assert move_pieces(0, engine.submit, engine.status)


def test_after_a_failure_no_piece_is_started_and_those_under_way_are_waited_for() -> None:
    n_pieces = 10 * PIECES_UNDER_WAY
    engine = ScriptedEngine([FAILED] + [DONE] * (n_pieces - 1), [0] + [5] * (n_pieces - 1))
    assert not move_pieces(n_pieces, engine.submit, engine.status)
    assert engine.started == list(range(PIECES_UNDER_WAY))
    assert not engine.under_way


def test_after_a_refusal_those_under_way_are_waited_for() -> None:
    engine = ScriptedEngine([DONE, DONE, REFUSED, DONE], [5, 5, 0, 0])
    assert not move_pieces(4, engine.submit, engine.status)
    assert engine.started == [0, 1, 2]
    assert not engine.under_way


def test_a_piece_that_ends_makes_room_for_the_next_while_a_slow_one_goes_on() -> None:
    n_pieces = 3 * PIECES_UNDER_WAY
    engine = ScriptedEngine([DONE] * n_pieces, [20] + [0] * (n_pieces - 1))
    ended_before_the_first: list[int] = []

    def status(ticket: int) -> int:
        answer = engine.status(ticket)
        if answer == DONE and 1 in engine.under_way:
            ended_before_the_first.append(ticket)
        return answer

    assert move_pieces(n_pieces, engine.submit, status)
    assert len(ended_before_the_first) == n_pieces - 1


def test_an_engine_that_says_nothing_is_given_up_aloud(caplog: pytest.LogCaptureFixture) -> None:
    assert not move_pieces(3, lambda piece: piece + 1, lambda _: UNDER_WAY, patience_s=0.0)
    assert "3 pieces of a transfer neither end nor fail; their memory may still change" in caplog.text


def test_a_status_that_is_no_end_is_waited_for() -> None:
    """Mooncake says -2 of a piece that is late: it may arrive yet."""
    answers = iter([-2, UNDER_WAY, -2, DONE])
    assert move_pieces(1, lambda _: 1, lambda _: next(answers))
    assert next(answers, None) is None

"""Pieces of a transfer through an engine that moves each by itself: few under way at a time, none when it ends."""

import logging
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

PIECES_UNDER_WAY = 16
"""Enough to keep an engine's connections to a peer busy; far fewer than it queues before it refuses."""

UNDER_WAY, DONE, FAILED = 0, 1, -1
"""What an engine says of a piece (Mooncake `transfer_check_status`)."""

_NAP_S = 0.0001


def move_pieces(
    n_pieces: int, submit: Callable[[int], int], status: Callable[[int], int], patience_s: float = 120.0
) -> bool:
    """Move pieces [0, n_pieces); whether all have arrived. When it returns, no piece is under way any more.

    `submit(i)` starts a piece and returns its ticket, 0 for a refusal; `status(ticket)` is asked until it is DONE or FAILED,
    and never after. Past the first failure no piece is started. Memory stays in use should the engine say nothing for
    `patience_s`: this is logged as an error, and False is returned.
    """
    waiting = iter(range(n_pieces))
    under_way: list[int] = []
    failed = False
    heard_at = time.monotonic()
    while True:
        if not failed:
            failed = not _fill(under_way, waiting, submit)
        if not under_way:
            return not failed
        answers = [(ticket, status(ticket)) for ticket in under_way]
        failed = failed or any(answer == FAILED for _, answer in answers)
        left = [ticket for ticket, answer in answers if answer not in (DONE, FAILED)]
        if len(left) < len(under_way):
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > patience_s:
            logger.error("%d pieces of a transfer neither end nor fail; their memory may still change", len(left))
            return False
        else:
            time.sleep(_NAP_S)
        under_way = left


def _fill(under_way: list[int], waiting: Iterator[int], submit: Callable[[int], int]) -> bool:
    """Start pieces while there is room; False when one was refused."""
    while len(under_way) < PIECES_UNDER_WAY:
        piece = next(waiting, None)
        if piece is None:
            return True
        ticket = submit(piece)
        if ticket == 0:
            return False
        under_way.append(ticket)
    return True

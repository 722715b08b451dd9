"""Choosing the decode engine.

`two_level` (paper, DE scheduling): the group (server) with the smallest total tok; inside it, among engines with enough device
memory, Z = 1.05 * (sum of len over R + sum of tok) / |E| parts high-load engines (tok + len > Z) from normal ones; the normal one
with the least seq, only without one the high-load one with the least tok. R is what the group's free memory could take of the
waiting requests, the one to be placed among them, fragmentation left out: its tokens are the lesser of the two sums. Where no
engine of that group has room, the next group is asked; where none has, the request waits for room, and those that fit overtake it
(no global FIFO).
`least_loaded`, `round_robin`, `random`: for comparison; they let no request wait.
"""

import math
import random
from collections.abc import Callable, Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.request import Request

DECODE_CHOICES = ("two_level", "least_loaded", "round_robin", "random")

HIGH_LOAD_FACTOR = 1.05


class DecodeChoice:
    """One rule by its name. Raises KeyError for a name it does not know."""

    def __init__(self, name: str = "two_level", seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._turns = 0
        self._grouped: list[Engine] = []
        self._groups: list[list[Engine]] | None = None
        self._lets_wait = name == "two_level"
        self._rule: Callable[[Request, Sequence[Engine], int], Engine | None] = {
            "two_level": self._two_level,
            "least_loaded": lambda _, engines, __: min(engines, key=lambda e: (e.tok, e.seq, e.engine_id)),
            "round_robin": self._next,
            "random": lambda _, engines, __: self._random.choice(engines),
        }[name]

    def choose(self, request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine | None:
        """One of `engines` (at least one), given the tokens of all waiting requests with this one; None: none has room now."""
        return self._rule(request, engines, waiting_tokens)

    def most_room_tokens(self, engines: Sequence[Engine]) -> float:
        """The longest request that one of `engines` would take now; infinite for one without bounds."""
        if not self._lets_wait:
            return math.inf
        most = 0
        for engine in engines:
            room = engine.free_kv_tokens
            if room is None or not engine.seq:
                return math.inf
            if room > most:
                most = room
        return most

    def _two_level(self, request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine | None:
        # Engines are compared by identity, so this costs far less than grouping them anew.
        if engines != self._grouped:
            self._grouped, self._groups = list(engines), groups_of(engines)
        if self._groups is None:
            return _least_tok_with_room(request, engines)
        return _of_groups(request, self._groups, waiting_tokens)

    def _next(self, request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine:
        turn, self._turns = self._turns, self._turns + 1
        # Shifted by one each round: or else equal numbers of prefill and decode engines would form fixed pairs.
        return engines[(turn + turn // len(engines)) % len(engines)]


def groups_of(engines: Sequence[Engine]) -> list[list[Engine]] | None:
    """Engines by their server; None where each is alone."""
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(engine.group, []).append(engine)
    return None if len(groups) == len(engines) else list(groups.values())


def _of_groups(request: Request, groups: list[list[Engine]], waiting_tokens: int) -> Engine | None:
    """The two levels; most often the first group has room, so that sorting is put off."""
    totals = [sum([engine.tok for engine in members]) for members in groups]
    chosen = _inside(request, groups[totals.index(min(totals))], waiting_tokens)
    if chosen is not None:
        return chosen
    for _, members in sorted(zip(totals, groups, strict=True), key=lambda group: group[0])[1:]:
        chosen = _inside(request, members, waiting_tokens)
        if chosen is not None:
            return chosen
    return None


def _least_tok_with_room(request: Request, engines: Sequence[Engine]) -> Engine | None:
    """The rule for servers of one rank: a group's choice is the engine's, but for its room."""
    length = request.prompt_tokens + request.output_tokens
    best: Engine | None = None
    for engine in engines:
        tok = engine.tok
        if best is not None and (tok > best.tok or (tok == best.tok and engine.seq >= best.seq)):
            continue
        room = engine.free_kv_tokens
        if room is None or room >= length or not engine.seq:
            best = engine
    return best


def _inside(request: Request, members: list[Engine], waiting_tokens: int) -> Engine | None:
    roomy = [engine for engine in members if has_room(engine, request)]
    if not roomy:
        return None
    limit = high_load_tokens(members, waiting_tokens)
    length = request.prompt_tokens + request.output_tokens
    normal = [engine for engine in roomy if engine.tok + length <= limit]
    if normal:
        return min(normal, key=lambda engine: (engine.seq, engine.tok, engine.engine_id))
    return min(roomy, key=lambda engine: (engine.tok, engine.seq, engine.engine_id))


def high_load_tokens(members: Sequence[Engine], waiting_tokens: int) -> float:
    """Z of the paper."""
    free = [engine.free_kv_tokens for engine in members]
    could_hold = waiting_tokens if None in free else min(waiting_tokens, sum(max(0, room or 0) for room in free))
    return HIGH_LOAD_FACTOR * (could_hold + sum(engine.tok for engine in members)) / len(members)


def has_room(engine: Engine, request: Request) -> bool:
    """Whether the engine's device memory takes the request; an idle engine takes any, since it can never have more."""
    if engine.free_kv_tokens is None or engine.seq == 0:
        return True
    return engine.free_kv_tokens >= request.prompt_tokens + request.output_tokens

"""Choosing the decode engine.

`two_level` (paper, DE scheduling): the group (server) with the smallest total tok; inside it, among engines with enough device
memory, Z = 1.05 * (sum of len over R + sum of tok) / |E| parts high-load engines (tok + len > Z) from normal ones; the normal one
with the least seq, only without one the high-load one with the least tok. R is what the group's free memory could take of the
waiting requests, fragmentation left out: its tokens are the lesser of the two sums. Where no engine of that group has room, the
next group is asked; where none has, the request waits for room, and those that fit overtake it (no global FIFO).
`least_loaded`, `round_robin`, `random`: for comparison; they let no request wait.
"""

import random
from collections.abc import Callable, Sequence

from sglang_dualpath.router.scheduling.cluster import Engine
from sglang_dualpath.router.scheduling.request import Request

DECODE_CHOICES = ("two_level", "least_loaded", "round_robin", "random")

HIGH_LOAD_FACTOR = 1.05


class DecodeChoice:
    """One rule by its name. Raises KeyError for a name it does not know."""

    def __init__(self, name: str = "two_level", seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._turns = 0
        self._rule: Callable[[Request, Sequence[Engine], int], Engine | None] = {
            "two_level": two_level,
            "least_loaded": lambda _, engines, __: min(engines, key=lambda e: (e.tok, e.seq, e.engine_id)),
            "round_robin": self._next,
            "random": lambda _, engines, __: self._random.choice(engines),
        }[name]

    def choose(self, request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine | None:
        """One of `engines` (at least one), given the tokens of all waiting requests; None: none has room now."""
        return self._rule(request, engines, waiting_tokens)

    def _next(self, request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine:
        turn, self._turns = self._turns, self._turns + 1
        # Shifted by one each round: or else equal numbers of prefill and decode engines would form fixed pairs.
        return engines[(turn + turn // len(engines)) % len(engines)]


def two_level(request: Request, engines: Sequence[Engine], waiting_tokens: int) -> Engine | None:
    """See the module."""
    if all(engine.group == engine.engine_id for engine in engines):
        return _least_tok_with_room(request, engines)
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(engine.group, []).append(engine)
    for members in sorted(groups.values(), key=lambda group: sum(engine.tok for engine in group)):
        chosen = _inside(request, members, waiting_tokens)
        if chosen is not None:
            return chosen
    return None


def _least_tok_with_room(request: Request, engines: Sequence[Engine]) -> Engine | None:
    """The rule for servers of one rank: a group's choice is the engine's, but for its room."""
    length = request.prompt_tokens + request.output_tokens
    best: Engine | None = None
    for engine in engines:
        if best is not None and engine.tok > best.tok:
            continue
        if engine.free_kv_tokens is not None and engine.free_kv_tokens < length and engine.seq:
            continue
        if best is None or engine.tok < best.tok or engine.seq < best.seq:
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

"""Which side reads a request's cached KV, once its engines are known; 0 is path A (prefill side), 1 path B (decode side).

`shorter_queue`: the side whose node has the shorter read queue, equal ones in turn (paper, read side). `split`: both at once, so
that both are done at the same time, given what is queued and how fast each node reads (the paper's future work); a part that
would be smaller than `min_part_tokens` is not worth a second reader and goes to the other side. `prefill`, `decode`,
`alternate`: for comparison.
Engines without path B read on the prefill side; a side demanded with the request holds.
"""

from collections.abc import Callable

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.request import Request

READ_SIDES = ("shorter_queue", "split", "prefill", "decode", "alternate")

MIN_PART_TOKENS = 1024


class ReadSide:
    """One rule by its name. Raises KeyError for a name it does not know."""

    def __init__(self, name: str = "shorter_queue", min_part_tokens: int = MIN_PART_TOKENS) -> None:
        self._min_part_tokens = min_part_tokens
        self._turns = 0
        self._turns_of: dict[str, int] = {}
        rules: dict[str, Callable[[Request, Engine, Engine], float]] = {
            "shorter_queue": self._shorter_queue,
            "split": self._split,
            "prefill": lambda *_: 0.0,
            "decode": lambda *_: 1.0,
            "alternate": self._alternate,
        }
        self._rule = rules[name]

    def share(self, request: Request, prefill: Engine, decode: Engine) -> float:
        """Of the request's cached blocks, what the decode side reads."""
        if request.read_side is not None:
            return 1.0 if request.read_side == "decode" else 0.0
        if not (prefill.dual and decode.dual):
            return 0.0
        return self._rule(request, prefill, decode)

    def _turn(self) -> float:
        self._turns += 1
        return 0.0 if self._turns % 2 else 1.0

    def _alternate(self, request: Request, prefill: Engine, decode: Engine) -> float:
        """In turn for each prefill engine: one turn for all would give every engine the same side again and again."""
        turn = self._turns_of[prefill.engine_id] = self._turns_of.get(prefill.engine_id, 0) + 1
        return float(turn % 2 == 0)

    def _shorter_queue(self, request: Request, prefill: Engine, decode: Engine) -> float:
        here, there = prefill.node.read_q_tokens, decode.node.read_q_tokens
        if here == there:
            return self._turn()
        return 0.0 if here < there else 1.0

    def _split(self, request: Request, prefill: Engine, decode: Engine) -> float:
        rates = (prefill.node.read_tokens_per_s, decode.node.read_tokens_per_s)
        if prefill.node is decode.node or rates[0] is None or rates[1] is None:
            return self._shorter_queue(request, prefill, decode)
        return split_share(
            request.prompt_tokens,
            (prefill.node.read_q_tokens, decode.node.read_q_tokens),
            (rates[0], rates[1]),
            self._min_part_tokens,
        )


def split_share(tokens: int, queued: tuple[int, int], rates_per_s: tuple[float, float], min_part_tokens: int) -> float:
    """The decode side's share of `tokens` with which both sides end at the same time; (prefill, decode) in the tuples."""
    end_s = (tokens + queued[0] + queued[1]) / (rates_per_s[0] + rates_per_s[1])
    part = min(max(end_s * rates_per_s[1] - queued[1], 0.0), float(tokens))
    if part < min_part_tokens and tokens - part < min_part_tokens:
        return 0.0 if part * 2 < tokens else 1.0
    if part < min_part_tokens:
        return 0.0
    if tokens - part < min_part_tokens:
        return 1.0
    return part / tokens

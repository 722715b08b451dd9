"""Round robin: each side's engines in turn, such that all pairs come up, and the read sides in turn on every pair.

Taken alone, equal numbers of prefill and decode engines would form fixed pairs, each with a fixed read side: half of the
storage NICs would idle. So the decode engines' turn shifts by one whenever the same pairs would come again, and the read
side alternates from engine to engine as well as from round to round.
Knobs: none. The paper's baseline for the balance of storage NICs (Max/Avg 1.53).
"""

import math
from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad, RequestFacts


class RoundRobin:
    """See the module."""

    def __init__(self) -> None:
        self._turn = 0

    def assign(
        self, request: RequestFacts, prefill: Sequence[EngineLoad], decode: Sequence[EngineLoad]
    ) -> Assignment | None:
        """See `Policy.assign`; never lets a request wait."""
        turn, self._turn = self._turn, self._turn + 1
        n_prefill, n_decode = len(prefill), len(decode)
        i = turn % n_prefill
        j = (turn + turn // math.lcm(n_prefill, n_decode)) % n_decode
        both = prefill[i].dual and decode[j].dual
        decode_reads = both and (i + j + turn // (n_prefill * n_decode)) % 2 == 1
        return Assignment(prefill[i].url, decode[j].url, "decode" if decode_reads else "prefill")

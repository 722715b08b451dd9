"""Round robin: each side's engines in turn, and the read sides in turn where both engines have both paths.

Knobs: none. The paper's baseline for the balance of storage NICs (Max/Avg 1.53).
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad, RequestFacts


class RoundRobin:
    """See the module."""

    def __init__(self) -> None:
        self._next_prefill = 0
        self._next_decode = 0
        self._next_side = 0

    def assign(
        self, request: RequestFacts, prefill: Sequence[EngineLoad], decode: Sequence[EngineLoad]
    ) -> Assignment | None:
        """See `Policy.assign`; never lets a request wait."""
        prefill_engine = prefill[self._next_prefill % len(prefill)]
        decode_engine = decode[self._next_decode % len(decode)]
        self._next_prefill += 1
        self._next_decode += 1
        if not (prefill_engine.dual and decode_engine.dual):
            return Assignment(prefill_engine.url, decode_engine.url, "prefill")
        self._next_side += 1
        return Assignment(prefill_engine.url, decode_engine.url, "decode" if self._next_side % 2 == 0 else "prefill")

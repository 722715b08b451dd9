"""Cache affinity: one consistent hash of the prefix, whatever its engine has to do.

The upper bound of the hit rate among hashing policies, and the worst balance (a baseline of the DualMap paper).
Knobs: virtual_nodes.
"""

from collections.abc import Sequence

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.candidate_pair import CandidatePairs
from sglang_dualpath.router.scheduling.policy.free_choice import FreeChoice
from sglang_dualpath.router.scheduling.policy.policy import Choice
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request


class CacheAffinity(FreeChoice):
    """See the module."""

    uses_hits = True

    def __init__(self, settings: PolicySettings) -> None:
        self._pairs = CandidatePairs(settings, n_rings=1, splits=False)

    def joined(self, engine: Engine) -> None:
        """See `Policy.joined`."""
        self._pairs.joined(engine)

    def left(self, engine: Engine) -> None:
        """See `Policy.left`."""
        self._pairs.left(engine)

    def choose(self, request: Request, engines: Sequence[Engine], now_s: float) -> Choice | None:
        """See `Policy.choose`."""
        return Choice(self._pairs.of(request, engines).engines[0], "hash")

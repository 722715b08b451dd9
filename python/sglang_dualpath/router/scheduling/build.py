"""A scheduler from the names of its rules."""

from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.scheduler import Scheduler


def build_scheduler(policy: str, decode: str, read_side: str, knobs: PolicySettings) -> Scheduler:
    """Over a cluster without engines yet. Raises KeyError for a name it does not know."""
    return Scheduler(Cluster(), POLICIES[policy](knobs), DecodeChoice(decode, knobs.seed), ReadSide(read_side))

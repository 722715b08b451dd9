"""The policies by the names users type."""

from collections.abc import Callable

from sglang_dualpath.router.scheduling.policy.cache_affinity import CacheAffinity
from sglang_dualpath.router.scheduling.policy.cache_aware import CacheAware
from sglang_dualpath.router.scheduling.policy.dualmap import DualMap
from sglang_dualpath.router.scheduling.policy.dualpath import DualPath
from sglang_dualpath.router.scheduling.policy.dualpath_dualmap import DualPathDualMap
from sglang_dualpath.router.scheduling.policy.least_loaded import LeastLoaded
from sglang_dualpath.router.scheduling.policy.min_ttft import MinTtft
from sglang_dualpath.router.scheduling.policy.policy import Policy
from sglang_dualpath.router.scheduling.policy.power_of_two import PowerOfTwo
from sglang_dualpath.router.scheduling.policy.preble import Preble
from sglang_dualpath.router.scheduling.policy.random_choice import RandomChoice
from sglang_dualpath.router.scheduling.policy.round_robin import RoundRobin
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings

POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "cache_affinity": CacheAffinity,
    "cache_aware": CacheAware,
    "dualmap": DualMap,
    "dualpath": lambda _: DualPath(),
    "dualpath+dualmap": DualPathDualMap,
    "least_loaded": lambda _: LeastLoaded(),
    "min_ttft": lambda _: MinTtft(),
    "power_of_two": lambda settings: PowerOfTwo(settings.seed),
    "preble": lambda _: Preble(),
    "random": lambda settings: RandomChoice(settings.seed),
    "round_robin": lambda _: RoundRobin(),
}

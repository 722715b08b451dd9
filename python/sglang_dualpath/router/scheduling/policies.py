"""The policies by the names users type."""

from collections.abc import Callable

from sglang_dualpath.router.scheduling.dualpath import DualPath
from sglang_dualpath.router.scheduling.engine import Policy
from sglang_dualpath.router.scheduling.round_robin import RoundRobin

POLICIES: dict[str, Callable[[], Policy]] = {"dualpath": DualPath, "round_robin": RoundRobin}

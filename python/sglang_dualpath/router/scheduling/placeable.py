"""Which engines may take a request at all, however loaded they are."""

from dataclasses import dataclass

from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.engine import Engine, Role
from sglang_dualpath.router.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """A request for which no engine of a role is there."""

    request: Request
    role: Role


def allowed(request: Request, engines: list[Engine]) -> list[Engine]:
    """Those that have not failed the request."""
    passed_over = request.passed_over
    return [engine for engine in engines if engine.group not in passed_over] if passed_over else engines


def missing_role(request: Request, cluster: Cluster) -> Role | None:
    """The role of which no engine is left for the request."""
    if not allowed(request, cluster.prefill):
        return "prefill"
    if not allowed(request, cluster.decode):
        return "decode"
    return None

"""Engines and requests for scheduling tests."""

from typing import Any

from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.engine import Engine, Role
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.placeable import Unplaceable
from sglang_dualpath.router.scheduling.policy.dualpath import DualPath
from sglang_dualpath.router.scheduling.policy.policy import Policy
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.request import Assignment, Request
from sglang_dualpath.router.scheduling.scheduler import Scheduler


def request(name: str = "r", prompt_tokens: int = 100, **fields: Any) -> Request:
    """A request that has just arrived."""
    return Request(request_id=name, prompt_tokens=prompt_tokens, arrived_s=fields.pop("arrived_s", 0.0), **fields)


def report(engine_id: str, **fields: Any) -> LoadReport:
    """The report of an idle engine that has both paths."""
    values: dict[str, Any] = {
        "node_id": f"node of {engine_id}",
        "dual": True,
        "seq": 0,
        "tok": 0,
        "read_q_tokens": 0,
        "free_kv_tokens": 100_000,
        "free_buffer_tokens": 100_000,
        "alpha_tokens": 1000.0,
        "beta_tokens": 1000.0,
    }
    return LoadReport(engine_id=engine_id, **{**values, **fields})


def joined(cluster: Cluster, engine_id: str, role: Role, **fields: Any) -> Engine:
    """An engine that is there and has reported."""
    engine = cluster.join(engine_id, role, engine_id.partition("@")[0], f"node of {engine_id}")
    cluster.report(report(engine_id, **fields), 0.0)
    return engine


def scheduler(n_prefill: int, n_decode: int, policy: Policy | None = None, **rules: Any) -> Scheduler:
    """Engines `p0`, `p1`, ... and `d0`, `d1`, ..., all idle and available."""
    made = Scheduler(
        Cluster(), policy or DualPath(), rules.get("decode", DecodeChoice()), rules.get("read_side", ReadSide())
    )
    roles: list[tuple[str, Role, int]] = [("p", "prefill", n_prefill), ("d", "decode", n_decode)]
    for letter, role, count in roles:
        for index in range(count):
            made.set_available(joined(made.cluster, f"{letter}{index}", role), True)
    return made


def assigned(made: list[Assignment | Unplaceable]) -> list[tuple[str, str, str]]:
    """(request, prefill engine, decode engine) of what has been decided."""
    return [(one.request_id, one.prefill_id, one.decode_id) for one in made if isinstance(one, Assignment)]

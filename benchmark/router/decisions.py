"""How long the scheduler takes for one decision, one rebalancing round, and how much it remembers of an engine."""

import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable

from rich.table import Table
from sglang_dualpath.router.scheduling.build import build_scheduler
from sglang_dualpath.router.scheduling.load_report import LoadReport
from sglang_dualpath.router.scheduling.marks import Marks
from sglang_dualpath.router.scheduling.policy.dualmap import DualMap
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request
from sglang_dualpath.router.scheduling.scheduler import Scheduler

N_ENGINES = 128
N_WAITING = 10_000
N_KEYS = 256
N_MEASURED = 300


def measure_decisions() -> Table:
    """A table of medians."""
    table = Table("policy")
    for title in (f"one decision, {N_ENGINES}+{N_ENGINES} engines, {N_WAITING:,} waiting", "bytes an engine, full"):
        table.add_column(title, justify="right")
    for name in sorted(POLICIES):
        table.add_row(name, f"{decision_us(name):.1f}", f"{metadata_bytes(name):,}")
    table.add_row("rebalancing round, 32 engines, 1,000 held", f"{rebalance_us():.1f}", "")
    return table


def decision_us(policy: str) -> float:
    """Median microseconds from a report that lets one request go to its assignment, in a full queue."""
    scheduler = _scheduler(policy, N_ENGINES)
    source = random.Random(1)
    for request in _waiting():
        scheduler.submit(request)
    _overload(scheduler)
    list(scheduler.run(0.0))
    taken: list[float] = []
    for _ in range(N_MEASURED):
        engine = source.choice(scheduler.cluster.prefill)
        before = set(scheduler.cluster.work)
        scheduler.cluster.report(_report(engine.engine_id, tok=0), 0.0)
        scheduler.submit(_request(f"n{len(taken)}", source, arrived_s=0.0))
        began_s = time.perf_counter()
        run = iter(scheduler.run(0.0))
        made = next(run, None)
        taken.append(time.perf_counter() - began_s)
        for _ in run:
            pass
        scheduler.cluster.report(_report(engine.engine_id, tok=10**7), 0.0)
        for request_id in set(scheduler.cluster.work) - before:
            scheduler.end(request_id)
        assert made is not None or POLICIES[policy](PolicySettings()).holds
    return statistics.median(taken) * 1e6


@functools.cache
def _waiting() -> tuple[Request, ...]:
    """The same for every policy."""
    source = random.Random(4)
    return tuple(_request(f"w{index}", source, arrived_s=0.0) for index in range(N_WAITING))


def rebalance_us() -> float:
    """Median microseconds of one DualMap round over 1,000 requests held for overloaded engines."""
    policy = DualMap(PolicySettings())
    scheduler = build_scheduler("dualmap", "two_level", "shorter_queue", PolicySettings())
    scheduler.policy = policy
    _join(scheduler, 32)
    source = random.Random(2)
    for engine in scheduler.cluster.prefill[:8]:
        engine.pending_new_tokens = 10**6
    for i in range(1000):
        engine = scheduler.cluster.prefill[i % 8]
        request = _request(f"h{i}", source, 0.0)
        policy.choose(request, scheduler.cluster.prefill, 0.0)
        scheduler._held.hold(request, engine.engine_id)
        scheduler._elsewhere.add(request, i)
    taken = []
    for i in range(30):
        policy._moved.clear()
        scheduler.cluster.prefill[i % 32].cached.insert(_request(f"x{i}", source, 0.0).marks)
        taken.append(_timed(lambda: scheduler._rebalance(0.0)))
    return statistics.median(taken) * 1e6


def metadata_bytes(policy: str) -> int:
    """What is remembered of one engine once its table is full."""
    scheduler = _scheduler(policy, 2)
    engine = scheduler.cluster.prefill[0]
    source = random.Random(3)
    for _ in range(200):
        engine.cached.insert(Marks.of(tuple(source.getrandbits(64) for _ in range(N_KEYS))))
    return engine.cached.n_bytes


def _scheduler(policy: str, n_engines: int) -> Scheduler:
    scheduler = build_scheduler(policy, "two_level", "shorter_queue", PolicySettings())
    _join(scheduler, n_engines)
    return scheduler


def _join(scheduler: Scheduler, n_engines: int) -> None:
    for role, index in itertools.product(("prefill", "decode"), range(n_engines)):
        name = f"http://10.0.{index}.{1 if role == 'prefill' else 2}:30000"
        engine = scheduler.cluster.join(name, role, name, name)
        scheduler.cluster.report(_report(name, tok=0), 0.0)
        scheduler.set_available(engine, True)


def _overload(scheduler: Scheduler) -> None:
    for engine in scheduler.cluster.prefill:
        scheduler.cluster.report(_report(engine.engine_id, tok=10**7), 0.0)


def _report(name: str, tok: int) -> LoadReport:
    return LoadReport(
        engine_id=name, node_id=name, dual=True, seq=tok // 30_000, tok=tok, read_q_tokens=tok // 2, free_kv_tokens=10**8,
        free_buffer_tokens=10**8, alpha_tokens=10**6, beta_tokens=10**6, read_tokens_per_s=10**5, compute_tokens_per_s=6250.0,
    )  # fmt: skip


def _request(name: str, source: random.Random, arrived_s: float) -> Request:
    keys = tuple(source.getrandbits(64) for _ in range(N_KEYS))
    return Request(name, N_KEYS * 128 + 50, arrived_s, keys, output_tokens=500)


def _timed(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s

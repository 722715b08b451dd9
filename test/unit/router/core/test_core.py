"""The core between front and scheduler: every placement ends once, and who waits learns what becomes of it."""

import asyncio
from typing import Any

import pytest
from sglang_dualpath.router.core.core import QueueSettings, SchedulingCore
from sglang_dualpath.router.core.metrics import CoreMetrics
from sglang_dualpath.router.front.placement import Ended, NotPlaced, Placement
from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.policy.dualpath import DualPath
from sglang_dualpath.router.scheduling.read_side import ReadSide
from sglang_dualpath.router.scheduling.scheduler import Scheduler

from test.unit.router.running_router import report_of
from test.unit.router.scheduling.engines import request
from test.unit.router.stub_engine import until

pytestmark = pytest.mark.asyncio

P, D = "http://10.0.0.1:30000", "http://10.0.0.2:30000"


def core(queue_size: int = 10, queue_timeout_s: float = 60.0) -> SchedulingCore:
    """One prefill and one decode engine, both idle."""
    made = SchedulingCore(
        Scheduler(Cluster(), DualPath(), DecodeChoice(), ReadSide()),
        BreakerSettings(failure_threshold=2),
        QueueSettings(queue_size, queue_timeout_s),
        CoreMetrics(),
    )
    reported(made)
    return made


def reported(made: SchedulingCore, **load: Any) -> None:
    """Both engines report; `load` is the prefill engine's."""
    made.take_report(report_of(P, "prefill", **load))
    made.take_report(report_of(D, "decode"))


def tally(made: SchedulingCore) -> tuple[int, int]:
    """Requests on the prefill engine and on the decode engine."""
    engines = made.scheduler.cluster.engines
    return engines[P].own_seq, engines[D].own_seq


async def waiting(made: SchedulingCore, n_waiting: int) -> "asyncio.Task[Placement]":
    """One more request, which waits."""
    task = asyncio.create_task(made.place(request()))
    await until(lambda: made.scheduler.n_waiting == n_waiting)
    return task


async def test_a_placement_counts_on_both_engines_until_it_ends() -> None:
    made = core()
    placement = await made.place(request())
    assert (placement.prefill_url, placement.decode_url, placement.bootstrap_port) == (P, D, 8998)
    assert tally(made) == (1, 1)
    made.prefill_done(placement.ticket)
    assert tally(made) == (0, 1)
    for _ in range(2):
        made.end(Ended(ticket=placement.ticket, outcome="ok"))
    assert tally(made) == (0, 0)
    assert made.n_in_flight == 0


async def test_one_id_may_be_placed_many_times_at_once() -> None:
    made = core()
    tickets = {(await made.place(request("same"))).ticket for _ in range(5)}
    assert len(tickets) == 5


async def test_those_that_wait_are_placed_by_the_next_report() -> None:
    made = core()
    reported(made, tok=10**6)
    task = await waiting(made, 1)
    reported(made)
    assert (await task).prefill_url == P


async def test_a_full_queue_refuses_at_once() -> None:
    made = core(queue_size=1)
    reported(made, tok=10**6)
    task = await waiting(made, 1)
    with pytest.raises(NotPlaced, match="--queue-size") as refused:
        await made.place(request())
    assert refused.value.outcome == "queue_full"
    task.cancel()
    await until(lambda: made.scheduler.n_waiting == 0)


async def test_waiting_too_long_ends_with_the_flag_that_allows_more() -> None:
    made = core(queue_timeout_s=0.05)
    reported(made, tok=10**6)
    with pytest.raises(NotPlaced, match=r"--queue-timeout-secs 0\.05") as refused:
        await made.place(request())
    assert refused.value.outcome == "queue_timeout"
    assert made.scheduler.n_waiting == 0


async def test_who_gives_up_while_waiting_leaves_no_trace() -> None:
    made = core()
    reported(made, tok=10**6)
    task = await waiting(made, 1)
    task.cancel()
    await until(task.done)
    reported(made)
    assert (made.scheduler.n_waiting, tally(made)) == (0, (0, 0))


async def test_who_gives_up_in_the_moment_it_is_placed_is_taken_off_again() -> None:
    made = core()
    reported(made, tok=10**6)
    task = await waiting(made, 1)
    reported(made)
    task.cancel()
    await until(task.done)
    assert tally(made) == (0, 0)
    assert made.n_in_flight == 0


async def test_those_that_wait_learn_that_the_last_engine_is_gone() -> None:
    made = core()
    reported(made, tok=10**6)
    task = await waiting(made, 1)
    server = made.servers.get(D)
    assert server is not None
    made.servers.set_health(server, False)
    made.run()
    with pytest.raises(NotPlaced, match="no healthy decode engine"):
        await task


async def test_an_unreachable_engine_is_out_at_once_and_told_as_lost() -> None:
    made = core()
    lost: list[str] = []
    made.on_lost(lost.append)
    placement = await made.place(request())
    made.end(Ended(ticket=placement.ticket, outcome="unreachable", failed_url=D))
    assert lost == [D]
    with pytest.raises(NotPlaced, match="no healthy decode engine"):
        await made.place(request())


async def test_failures_open_the_circuit_of_the_engine_to_blame_only() -> None:
    made = core()
    for _ in range(2):
        placement = await made.place(request())
        made.end(Ended(ticket=placement.ticket, outcome="engine_error", failed_url=P))
    states = {url: made.servers.get(url).breaker.state(0.0) for url in (P, D)}  # type: ignore[union-attr]
    assert states == {P: "open", D: "closed"}
    with pytest.raises(NotPlaced, match="no healthy prefill engine"):
        await made.place(request())


@pytest.mark.parametrize("outcome", ["client_gone", "bad_request", "timeout"])
async def test_what_is_no_engines_fault_opens_no_circuit(outcome: Any) -> None:
    made = core()
    for _ in range(5):
        placement = await made.place(request())
        made.end(Ended(ticket=placement.ticket, outcome=outcome, failed_url=P))
    assert (await made.place(request())).prefill_url == P


async def test_a_prefill_engine_without_a_known_port_has_upstreams_default() -> None:
    made = core()
    server = made.servers.get(P)
    assert server is not None
    server.bootstrap_port = None
    assert (await made.place(request())).bootstrap_port == 8998

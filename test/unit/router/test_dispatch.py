"""The router's queue: first come first served, bounded, and no place or ticket is lost."""

import asyncio
from collections.abc import Sequence

import pytest
from sglang_dualpath.router.dispatch import Dispatcher, NoEngines, QueueFull
from sglang_dualpath.router.fleet import REPORT_FRESH_S, Fleet
from sglang_dualpath.router.scheduling.dualpath import DualPath
from sglang_dualpath.router.scheduling.engine import Assignment, EngineLoad, RequestFacts

from test.unit.router.running_router import report_of
from test.unit.router.stub_engine import until

pytestmark = pytest.mark.asyncio

P, D = "http://p:1", "http://d:1"


class Gate:
    """A policy that lets requests pass while it is open."""

    def __init__(self, is_open: bool) -> None:
        self.is_open = is_open
        self.asked: list[int] = []

    def assign(
        self, request: RequestFacts, prefill: Sequence[EngineLoad], decode: Sequence[EngineLoad]
    ) -> Assignment | None:
        self.asked.append(request.prompt_tokens)
        return Assignment(prefill[0].url, decode[0].url, "prefill") if self.is_open else None


def made(gate: Gate, queue_size: int = 10) -> tuple[Fleet, Dispatcher]:
    """A dispatcher over one pair of engines."""
    fleet = Fleet()
    fleet.add(P, "prefill", 8998)
    fleet.add(D, "decode")
    return fleet, Dispatcher(fleet, gate, queue_size)


def waiting(dispatcher: Dispatcher, tokens: int) -> "asyncio.Task[tuple[Assignment, int]]":
    """A request under way."""
    return asyncio.create_task(dispatcher.assign(RequestFacts(tokens)))


async def test_an_assignment_is_counted_on_both_engines_until_its_ticket_ends() -> None:
    fleet, dispatcher = made(Gate(True))
    assignment, ticket = await dispatcher.assign(RequestFacts(9))
    assert [engine.work[ticket].tokens for engine in fleet.engines()] == [9, 9]
    fleet.end(assignment, ticket)
    assert [engine.work for engine in fleet.engines()] == [{}, {}]


async def test_requests_leave_the_queue_in_the_order_they_came() -> None:
    gate = Gate(False)
    _, dispatcher = made(gate)
    tasks = [waiting(dispatcher, tokens) for tokens in range(1, 6)]
    await until(lambda: dispatcher.n_waiting == 5)
    gate.is_open, gate.asked = True, []
    dispatcher.run()
    assert gate.asked == [1, 2, 3, 4, 5]
    assert len({ticket for _, ticket in await asyncio.gather(*tasks)}) == 5


async def test_a_late_request_does_not_overtake_those_that_wait() -> None:
    gate = Gate(False)
    _, dispatcher = made(gate)
    first = waiting(dispatcher, 1)
    await until(lambda: dispatcher.n_waiting == 1)
    gate.is_open, gate.asked = True, []
    second = waiting(dispatcher, 2)
    await asyncio.gather(first, second)
    assert gate.asked == [1, 2]


async def test_an_arrival_is_enough_for_those_that_wait_to_be_looked_at() -> None:
    """Nothing else may ever happen: an engine's reports can cease, and it counts as not overloaded then."""
    now = [1000.0]
    fleet = Fleet(clock=lambda: now[0])
    fleet.add(P, "prefill", 8998)
    fleet.add(D, "decode")
    dispatcher = Dispatcher(fleet, DualPath(), 10)
    fleet.take_report(report_of(P, "prefill", tok=10**6))
    first = waiting(dispatcher, 1)
    await until(lambda: dispatcher.n_waiting == 1)
    now[0] += REPORT_FRESH_S + 1
    second = waiting(dispatcher, 2)
    async with asyncio.timeout(30):
        assert {(await first)[0].prefill_url, (await second)[0].prefill_url} == {P}


async def test_a_full_queue_takes_no_more() -> None:
    gate = Gate(False)
    _, dispatcher = made(gate, queue_size=2)
    tasks = [waiting(dispatcher, 1), waiting(dispatcher, 2)]
    await until(lambda: dispatcher.n_waiting == 2)
    with pytest.raises(QueueFull):
        await dispatcher.assign(RequestFacts(3))
    gate.is_open = True
    dispatcher.run()
    await asyncio.gather(*tasks)
    assert dispatcher.n_waiting == 0


@pytest.mark.parametrize(("gone", "role"), [(P, "prefill"), (D, "decode")])
async def test_without_a_healthy_engine_of_a_role_there_is_no_waiting(gone: str, role: str) -> None:
    fleet, dispatcher = made(Gate(True))
    fleet.set_health(gone, False)
    with pytest.raises(NoEngines, match=f"no healthy {role} engine"):
        await dispatcher.assign(RequestFacts(1))


async def test_requests_that_wait_learn_that_the_last_engine_is_gone() -> None:
    fleet, dispatcher = made(Gate(False))
    tasks = [waiting(dispatcher, 1), waiting(dispatcher, 2)]
    await until(lambda: dispatcher.n_waiting == 2)
    fleet.set_health(D, False)
    dispatcher.run()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(failure) for failure in failures] == [NoEngines, NoEngines]
    assert dispatcher.n_waiting == 0


async def test_an_engine_to_pass_over_is_passed_over() -> None:
    fleet, dispatcher = made(Gate(True))
    fleet.add("http://p:2", "prefill", 8998)
    assignment, _ = await dispatcher.assign(RequestFacts(1), frozenset({P}))
    assert assignment.prefill_url == "http://p:2"


async def test_a_read_side_that_the_request_demands_holds_and_is_counted_there() -> None:
    fleet, dispatcher = made(Gate(True))
    assignment, ticket = await dispatcher.assign(RequestFacts(9, read_side="decode"))
    assert assignment.read_side == "decode"
    assert [engine.work[ticket].reads_tokens for engine in fleet.engines()] == [0, 9]


# ---- requests that give up


async def test_a_request_that_gives_up_while_waiting_leaves_no_trace() -> None:
    gate = Gate(False)
    fleet, dispatcher = made(gate)
    first, second = waiting(dispatcher, 1), waiting(dispatcher, 2)
    await until(lambda: dispatcher.n_waiting == 2)
    first.cancel()
    await asyncio.wait({first})
    assert (first.cancelled(), dispatcher.n_waiting) == (True, 1)
    gate.is_open = True
    dispatcher.run()
    _, ticket = await second
    assert [set(engine.work) for engine in fleet.engines()] == [{ticket}, {ticket}]


async def test_a_request_that_gives_up_in_the_moment_it_is_assigned_returns_its_ticket() -> None:
    gate = Gate(False)
    fleet, dispatcher = made(gate)
    task = waiting(dispatcher, 1)
    await until(lambda: dispatcher.n_waiting == 1)
    gate.is_open = True
    dispatcher.run()
    assert [len(engine.work) for engine in fleet.engines()] == [1, 1]
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert [engine.work for engine in fleet.engines()] == [{}, {}]


async def test_a_request_that_gives_up_in_the_moment_engines_vanish_is_still_cancelled() -> None:
    fleet, dispatcher = made(Gate(False))
    task = waiting(dispatcher, 1)
    await until(lambda: dispatcher.n_waiting == 1)
    fleet.set_health(P, False)
    dispatcher.run()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()

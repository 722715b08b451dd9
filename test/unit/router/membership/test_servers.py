"""The servers a router knows: how they join, what takes them out, and that the scheduler sees the same."""

import logging
from typing import Any

import pytest
from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.membership.servers import LimitOverrides, RoleMismatch, Servers

from test.unit.router.membership.fleet import Fleet
from test.unit.router.running_router import report_of

P, D = "http://10.0.0.1:30000", "http://10.0.0.2:30000"


def ready(fleet: Fleet, url: str = P, role: Any = "prefill") -> Any:
    """A server named by a flag, and healthy."""
    server = fleet.servers.add(url, role, "flag")
    fleet.servers.set_health(server, True)
    return server


def test_a_server_is_offered_once_it_has_been_found_healthy() -> None:
    fleet = Fleet()
    server = fleet.servers.add(P, "prefill", "flag")
    assert fleet.offered == []
    fleet.servers.set_health(server, True)
    assert fleet.offered == [P]


def test_a_trailing_slash_is_the_same_server() -> None:
    fleet = Fleet()
    assert fleet.servers.add(P + "/", "prefill", "flag") is fleet.servers.add(P, "prefill", "flag")


def test_adding_a_server_in_its_other_role_is_refused() -> None:
    fleet = Fleet()
    fleet.servers.add(P, "prefill", "flag")
    with pytest.raises(RoleMismatch, match="prefill engine already"):
        fleet.servers.add(P, "decode", "admin")


def test_one_that_fails_is_lost_and_no_longer_offered() -> None:
    fleet = Fleet()
    server = ready(fleet)
    fleet.servers.set_health(server, False)
    assert fleet.offered == []
    assert fleet.lost == [P]


def test_draining_takes_it_out_without_losing_it_and_adding_it_again_brings_it_back() -> None:
    fleet = Fleet()
    server = ready(fleet)
    fleet.servers.drain(server)
    assert fleet.offered == []
    assert fleet.lost == []
    fleet.servers.add(P, "prefill", "admin")
    assert fleet.offered == [P]


def test_a_removed_server_is_unknown_to_the_scheduler_too() -> None:
    fleet = Fleet()
    server = ready(fleet)
    fleet.servers.remove(server)
    assert fleet.servers.all() == []
    assert fleet.scheduler.cluster.engines == {}


def test_its_id_and_its_url_both_name_it() -> None:
    fleet = Fleet()
    server = fleet.servers.add(P, "prefill", "flag")
    assert fleet.servers.by_id(server.id) is fleet.servers.by_id(P) is server
    assert fleet.servers.by_id("nobody") is None


# ---- reports


def test_a_server_joins_by_its_report_and_is_offered_at_once() -> None:
    fleet = Fleet()
    fleet.servers.take_report(report_of(P, "prefill", bootstrap_port=9000))
    server = fleet.servers.get(P)
    assert server is not None
    assert (server.source, server.bootstrap_port) == ("report", 9000)
    assert fleet.offered == [P]


def test_a_report_does_not_bring_back_what_fails_its_probes() -> None:
    fleet = Fleet()
    server = ready(fleet)
    server.health_failures = 1
    fleet.servers.set_health(server, False)
    fleet.servers.take_report(report_of(P, "prefill"))
    assert fleet.offered == []


def test_a_bootstrap_port_nobody_named_comes_from_the_report() -> None:
    fleet = Fleet()
    server = fleet.servers.add(P, "prefill", "flag")
    fleet.servers.take_report(report_of(P, "prefill", bootstrap_port=9000))
    assert server.bootstrap_port == 9000


def test_a_report_in_another_role_is_not_taken_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    server = fleet.servers.add(P, "prefill", "flag")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            fleet.servers.take_report(report_of(P, "decode"))
    assert len(caplog.records) == 1
    assert server.reports == {}


def test_alpha_and_beta_of_the_command_line_hold_against_reported_ones() -> None:
    fleet = Fleet()
    fleet.servers = Servers(
        fleet.scheduler, BreakerSettings(), fleet.lost.append, LimitOverrides(7, 8), clock=lambda: fleet.now_s
    )
    fleet.servers.take_report(report_of(P, "prefill"))
    engine = fleet.scheduler.cluster.engines[P]
    assert (engine.alpha_tokens, engine.beta_tokens) == (7, 8)


def test_a_server_with_several_ranks_is_several_engines_of_one_group() -> None:
    fleet = Fleet()
    ready(fleet)
    for rank in (0, 1, 2):
        fleet.servers.take_report(report_of(P, "prefill", dp_rank=rank, tok=rank))
    assert fleet.offered == [f"{P}@0", f"{P}@1", f"{P}@2"]
    assert {engine.group for engine in fleet.scheduler.cluster.engines.values()} == {P}
    for rank in (0, 1, 2):
        fleet.servers.take_report(report_of(P, "prefill", dp_rank=rank, tok=rank))
    assert [fleet.scheduler.cluster.engines[f"{P}@{rank}"].tok for rank in (0, 1, 2)] == [0, 1, 2]


def test_one_that_falls_silent_is_lost_and_forgotten_only_if_it_joined_by_itself() -> None:
    fleet = Fleet()
    ready(fleet)
    for url in (P, "http://10.0.0.3:30000"):
        fleet.servers.take_report(report_of(url, "prefill"))
    fleet.now_s += 11.0
    fleet.servers.check_heartbeats(10.0)
    assert fleet.offered == []
    assert sorted(fleet.lost) == [P, "http://10.0.0.3:30000"]
    fleet.servers.check_heartbeats(10.0)
    assert [server.url for server in fleet.servers.all()] == [P]


def test_one_that_never_reported_needs_no_heartbeat() -> None:
    fleet = Fleet()
    ready(fleet)
    fleet.now_s += 1000.0
    fleet.servers.check_heartbeats(10.0)
    assert fleet.offered == [P]


# ---- circuits


def test_an_open_circuit_takes_it_out_until_it_may_be_tried_again() -> None:
    fleet = Fleet(BreakerSettings(failure_threshold=2, success_threshold=1, open_s=5.0))
    ready(fleet)
    for _ in range(2):
        fleet.servers.begin(P)
        fleet.servers.end(P, failed=True)
    assert fleet.offered == []
    fleet.now_s += 5.0
    fleet.servers.refresh()
    assert fleet.offered == [P]
    fleet.servers.begin(P)
    assert fleet.offered == []
    fleet.servers.end(P, failed=False)
    assert fleet.offered == [P]

"""A dry run: every request of a trace is placed, by the policy's own rules."""

import io

import pytest
from rich.console import Console
from sglang_dualpath.router.dry_run.replay import CountedFleet, DryRun
from sglang_dualpath.router.dry_run.show import show
from sglang_dualpath.router.scheduling.build import build_scheduler
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request

FLEET = CountedFleet(n_prefill=3, n_decode=2)


def sessions(n_sessions: int, n_turns: int) -> list[Request]:
    """Agents whose prompts grow by a key block a turn."""
    made = [
        Request(
            f"{session}-{turn}",
            128 * (turn + 4) + 30,
            arrived_s=turn * 3.0 + session * 0.1,
            keys=tuple(1000 * session + block + 1 for block in range(turn + 4)),
            output_tokens=20,
        )
        for session in range(n_sessions)
        for turn in range(n_turns)
    ]
    return sorted(made, key=lambda request: request.arrived_s)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_request_is_placed_and_ends(policy: str) -> None:
    scheduler = build_scheduler(policy, "two_level", "shorter_queue", PolicySettings(seed=1))
    mix = DryRun(scheduler, FLEET).run(sessions(6, 8))
    assert (mix.n_requests, mix.n_placed) == (48, 48)
    assert sum(mix.prefill.values()) == sum(mix.decode.values()) == sum(mix.sides.values()) == 48
    assert scheduler.n_waiting == 0
    assert scheduler.cluster.work == {}


def test_affinity_hits_more_than_chance() -> None:
    def hits(policy: str) -> int:
        scheduler = build_scheduler(policy, "two_level", "shorter_queue", PolicySettings(seed=1))
        return DryRun(scheduler, FLEET).run(sessions(6, 8)).expected_hit_tokens

    assert hits("dualmap") > hits("random")


def test_the_mix_is_shown() -> None:
    scheduler = build_scheduler("dualpath", "two_level", "split", PolicySettings())
    out = io.StringIO()
    show(DryRun(scheduler, FLEET).run(sessions(2, 2)), "dualpath", (3, 2), Console(file=out, width=120))
    assert "placed 4" in out.getvalue()
    assert "short_read_queue" in out.getvalue()

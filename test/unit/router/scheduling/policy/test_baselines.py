"""The policies to compare with, each by its rule."""

from collections import Counter

import pytest
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.marks import Marks
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.policy import Policy
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings

from test.unit.router.scheduling.engines import joined, request

LONG = tuple(range(1, 11))
"""Keys of ten blocks: 1,280 tokens."""


def fleet(policy: Policy, *loads: tuple[int, int]) -> list[Engine]:
    """Prefill engines by (seq, tok), known to the policy."""
    cluster = Cluster(shared_store=False)
    made = []
    for i, (seq, tok) in enumerate(loads):
        engine = joined(cluster, f"p{i}", "prefill", seq=seq, tok=tok, beta_tokens=10.0**9)
        policy.joined(engine)
        made.append(engine)
    return made


def policy_named(name: str, **knobs: object) -> Policy:
    """A policy with some knobs set."""
    return POLICIES[name](PolicySettings(**knobs))  # type: ignore[arg-type]


def chosen(policy: Policy, engines: list[Engine], **fields: object) -> str:
    """Who gets a request."""
    choice = policy.choose(request(**fields), engines, 0.0)  # type: ignore[arg-type]
    assert choice is not None
    return choice.engine.engine_id


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_chooses_one_of_those_offered_and_alike_for_one_seed(name: str) -> None:
    def run() -> list[str]:
        policy = policy_named(name, seed=7)
        engines = fleet(policy, *[(i, 10 * i) for i in range(6)])
        offered = engines[1:5]
        return [chosen(policy, offered, name=f"r{i}", keys=(i % 3 + 1, i)) for i in range(40)]

    first = run()
    assert first == run()
    assert set(first) <= {"p1", "p2", "p3", "p4"}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_serves_with_a_single_engine(name: str) -> None:
    policy = policy_named(name)
    engines = fleet(policy, (0, 0))
    assert chosen(policy, engines) == "p0"


def test_round_robin_takes_turns() -> None:
    policy = policy_named("round_robin")
    engines = fleet(policy, (9, 9), (0, 0), (5, 5))
    assert [chosen(policy, engines) for _ in range(4)] == ["p0", "p1", "p2", "p0"]


def test_random_reaches_everyone() -> None:
    policy = policy_named("random")
    engines = fleet(policy, *[(0, 0)] * 4)
    assert set(Counter(chosen(policy, engines) for _ in range(200))) == {"p0", "p1", "p2", "p3"}


def test_least_loaded_goes_by_tokens() -> None:
    policy = policy_named("least_loaded")
    assert chosen(policy, fleet(policy, (1, 500), (9, 100))) == "p1"


def test_power_of_two_never_takes_the_most_loaded() -> None:
    policy = policy_named("power_of_two")
    engines = fleet(policy, (1, 1), (1, 2), (1, 3))
    assert "p2" not in {chosen(policy, engines) for _ in range(200)}


def test_power_of_two_keeps_the_highest_load_near_the_average() -> None:
    """Balls into bins: with one choice the fullest of 64 bins gets far more than with two (log log n / log 2)."""

    def fullest(name: str) -> int:
        policy = policy_named(name)
        engines = fleet(policy, *[(0, 0)] * 64)
        for i in range(64 * 16):
            choice = policy.choose(request(f"r{i}"), engines, 0.0)
            assert choice is not None
            choice.engine.tok += 1
        return max(engine.tok for engine in engines)

    assert fullest("power_of_two") <= 16 + 4
    assert fullest("random") > fullest("power_of_two")


def test_cache_affinity_sends_a_prefix_to_one_engine_whatever_its_load() -> None:
    policy = policy_named("cache_affinity")
    engines = fleet(policy, *[(0, 0)] * 8)
    first = chosen(policy, engines, keys=LONG)
    next(engine for engine in engines if engine.engine_id == first).tok = 10**6
    assert chosen(policy, engines, keys=(*LONG, 11, 12)) == first


def test_min_ttft_weighs_hits_against_what_waits() -> None:
    policy = policy_named("min_ttft")
    engines = fleet(policy, (0, 0), (0, 0))
    engines[1].cached.insert(Marks.of(LONG))
    assert chosen(policy, engines, keys=LONG, prompt_tokens=1300) == "p1"
    engines[1].pending_new_tokens = 2000
    assert chosen(policy, engines, keys=LONG, prompt_tokens=1300) == "p0"


def test_preble_exploits_long_hits_and_explores_otherwise() -> None:
    policy = policy_named("preble")
    engines = fleet(policy, (9, 900), (0, 0))
    engines[0].cached.insert(Marks.of(LONG))
    assert chosen(policy, engines, keys=LONG, prompt_tokens=2000) == "p0"
    engines[0].pending_new_tokens = 100_000
    assert chosen(policy, engines, keys=LONG, prompt_tokens=5000) == "p1"


def test_cache_aware_follows_the_match_until_the_load_is_uneven() -> None:
    policy = policy_named("cache_aware", balance_abs_threshold=4, balance_rel_threshold=2.0)
    engines = fleet(policy, (4, 400), (0, 0))
    engines[0].cached.insert(Marks.of(LONG))
    assert chosen(policy, engines, keys=LONG, prompt_tokens=1500) == "p0"
    engines[0].seq = 5
    assert chosen(policy, engines, keys=LONG, prompt_tokens=1500) == "p1"


def test_cache_aware_takes_the_emptiest_when_nothing_matches() -> None:
    policy = policy_named("cache_aware")
    engines = fleet(policy, (0, 0), (3, 0))
    engines[0].cached.insert(Marks.of(LONG))
    assert chosen(policy, engines, keys=(99, 100), prompt_tokens=300) == "p1"

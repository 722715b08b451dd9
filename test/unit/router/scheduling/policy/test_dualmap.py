"""DualMap: one of two candidates, always; affinity until the SLO speaks against it; moves that pay."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.estimate import expected_ttft_s
from sglang_dualpath.router.scheduling.marks import Marks
from sglang_dualpath.router.scheduling.policy.candidate_pair import Candidates
from sglang_dualpath.router.scheduling.policy.dualmap import DualMap, slo_aware
from sglang_dualpath.router.scheduling.policy.dualpath_dualmap import DualPathDualMap
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.request import Request

from test.unit.router.scheduling.engines import joined, request

RATE = 1000.0
SLO_S = 4.0
SETTINGS = PolicySettings(ttft_slo_s=SLO_S)


def fleet(policy: DualMap, n_engines: int) -> list[Engine]:
    """Idle prefill engines that compute 1,000 tokens a second, known to the policy."""
    cluster = Cluster(shared_store=False)
    engines = []
    for i in range(n_engines):
        engine = joined(cluster, f"p{i}", "prefill", compute_tokens_per_s=RATE, beta_tokens=5000.0)
        policy.joined(engine)
        engines.append(engine)
    return engines


def pair_of(policy: DualMap, asked: Request, engines: list[Engine]) -> list[Engine]:
    """Its candidates."""
    return policy._pairs.of(asked, engines).engines


def prefixed(name: str, prefix: int, blocks: int = 10) -> Request:
    """A request of 128 tokens a block and some more, whose keys follow from its prefix."""
    keys = tuple(random.Random(prefix * 1000 + i).getrandbits(64) for i in range(blocks))
    return request(name, 128 * blocks + 20, keys=keys)


@given(st.integers(0, 500), st.integers(2, 12))
def test_every_choice_is_one_of_two_distinct_candidates(prefix: int, n_engines: int) -> None:
    policy = DualMap(SETTINGS)
    engines = fleet(policy, n_engines)
    asked = prefixed("r", prefix)
    pair = pair_of(policy, asked, engines)
    assert len({engine.engine_id for engine in pair}) == 2
    for engine in engines:
        engine.pending_new_tokens = random.Random(prefix).randrange(10_000)
    choice = policy.choose(asked, engines, 0.0)
    assert choice is not None
    assert choice.engine in pair


def test_the_longer_hit_until_it_would_miss_the_slo_then_the_calmer_one() -> None:
    policy = DualMap(SETTINGS)
    one, other = fleet(policy, 2)
    asked = prefixed("r", 1)
    one.cached.insert(asked.marks)
    one.pending_new_tokens = 3900
    choice = slo_aware(asked, Candidates([one, other], 128), SLO_S)
    assert (choice.engine, choice.reason) == (one, "longer_hit")
    one.pending_new_tokens = 4000
    choice = slo_aware(asked, Candidates([one, other], 128), SLO_S)
    assert (choice.engine, choice.reason) == (other, "slo_switch")


def test_equal_hits_go_to_the_calmer_one() -> None:
    policy = DualMap(SETTINGS)
    one, other = fleet(policy, 2)
    one.pending_new_tokens = 10
    choice = slo_aware(prefixed("r", 1), Candidates([one, other], 128), SLO_S)
    assert (choice.engine, choice.reason) == (other, "equal_hits")


def test_a_hit_shorter_than_the_hashed_prefix_is_no_affinity() -> None:
    """Else an engine that lacks what all others hold, a system prompt, would get nothing until they miss the SLO."""
    policy = DualMap(SETTINGS)
    one, other = fleet(policy, 2)
    asked = prefixed("r", 1)
    one.cached.insert(Marks.of(asked.keys[:3]))
    one.pending_new_tokens = 10
    assert slo_aware(asked, Candidates([one, other], 3 * 128), SLO_S).engine is one
    assert slo_aware(asked, Candidates([one, other], 4 * 128), SLO_S).engine is other


def test_no_engine_starves_behind_a_common_system_prompt() -> None:
    """Ten blocks in common, 200 sessions, an even load: everyone gets a share."""
    policy = DualMap(SETTINGS)
    engines = fleet(policy, 8)
    common = tuple(range(1, 11))
    got: Counter[str] = Counter()
    for i in range(2000):
        session = i % 200
        asked = request(f"r{i}", 14 * 128, keys=(*common, *(1000 * (session + 1) + block for block in range(4))))
        choice = policy.choose(asked, engines, 0.0)
        assert choice is not None
        choice.engine.cached.insert(asked.marks)
        choice.engine.tok += asked.prompt_tokens
        policy.assigned(asked, choice.engine, 0.0)
        got[choice.engine.engine_id] += 1
    assert len(got) == 8
    assert min(got.values()) > 2000 / 8 / 4


def test_a_prefix_keeps_at_least_one_minus_two_over_m_of_its_hits() -> None:
    """m requests of one prefix touch at most two engines, so at most two of them miss. A prefix that is split meanwhile has
    new keys, and begins anew: here none is."""
    policy = DualMap(PolicySettings(ttft_slo_s=SLO_S, popularity_min_samples=10**6))
    engines = fleet(policy, 16)
    source = random.Random(5)
    for prefix in range(30):
        misses = 0
        for i in range(20):
            asked = prefixed(f"{prefix}-{i}", prefix)
            for engine in engines:
                engine.pending_new_tokens = source.randrange(6000)
            choice = policy.choose(asked, engines, 0.0)
            assert choice is not None
            misses += choice.engine.cached.hit_tokens(asked.marks) == 0
            choice.engine.cached.insert(asked.marks)
        assert misses <= 2


def test_two_candidates_balance_what_one_hash_does_not() -> None:
    """A skewed mix of prefixes over 16 engines: the fullest engine, against one hash of the same prefixes."""

    def fullest(n_candidates: int) -> float:
        policy = DualMap(SETTINGS)
        engines = fleet(policy, 16)
        source = random.Random(3)
        load: Counter[str] = Counter()
        for i in range(3000):
            asked = prefixed(f"r{i}", int(source.paretovariate(0.9)) % 400, blocks=2)
            pair = pair_of(policy, asked, engines)[:n_candidates]
            chosen = min(pair, key=lambda engine: load[engine.engine_id])
            load[chosen.engine_id] += 1
            policy.assigned(asked, chosen, 0.0)
        return max(load.values()) / (3000 / 16)

    assert fullest(2) < fullest(1)


@given(st.integers(3, 12), st.integers(0, 11))
def test_when_an_engine_leaves_only_its_own_prefixes_move(n_engines: int, gone: int) -> None:
    policy = DualMap(SETTINGS)
    engines = fleet(policy, n_engines)
    asked = [prefixed(f"r{i}", i, blocks=1) for i in range(60)]
    before = [{engine.engine_id for engine in pair_of(policy, one, engines)} for one in asked]
    left = engines[gone % n_engines]
    policy.left(left)
    rest = [engine for engine in engines if engine is not left]
    for old, one in zip(before, asked, strict=True):
        new = {engine.engine_id for engine in pair_of(policy, one, rest)}
        assert old - {left.engine_id} <= new


# ---- rebalancing


def held(policy: DualMap, engines: list[Engine], n_requests: int) -> list[tuple[Request, Engine]]:
    """Requests of many prefixes, held for the one engine that is overloaded."""
    hot = engines[0]
    hot.pending_new_tokens, hot.tok = 6000, 6000
    waiting = []
    prefix = 0
    while len(waiting) < n_requests:
        prefix += 1
        asked = prefixed(f"r{prefix}", prefix, blocks=4)
        if hot in pair_of(policy, asked, engines):
            waiting.append((asked, hot))
    return waiting


def test_moves_pay_go_to_idle_candidates_and_move_nobody_twice() -> None:
    policy = DualMap(SETTINGS)
    engines = fleet(policy, 8)
    waiting = held(policy, engines, 20)
    moves = policy.rebalance(waiting, 0.0)
    assert moves
    assert len({move.request.request_id for move in moves}) == len(moves)
    assert len({move.target.engine_id for move in moves}) == len(moves)
    for move in moves:
        assert move.source is engines[0]
        assert move.target in pair_of(policy, move.request, engines)
        assert not move.target.overloaded
        assert expected_ttft_s(move.target, move.request) < expected_ttft_s(move.source, move.request)
    assert policy.rebalance(waiting, 0.0) is not None
    choice = policy.choose(moves[0].request, engines, 0.0)
    assert choice is not None
    assert (choice.engine, choice.reason) == (moves[0].target, "rebalanced")


def test_nothing_moves_while_the_slo_is_met() -> None:
    policy = DualMap(SETTINGS)
    engines = fleet(policy, 8)
    waiting = held(policy, engines, 2)
    engines[0].pending_new_tokens = 100
    assert policy.rebalance(waiting, 0.0) == []


def test_nothing_moves_to_a_candidate_that_is_busy_too() -> None:
    policy = DualMap(SETTINGS)
    engines = fleet(policy, 8)
    waiting = held(policy, engines, 10)
    for engine in engines[1:]:
        engine.pending_new_tokens = 5000
    assert policy.rebalance(waiting, 0.0) == []


# ---- DualPath with DualMap


def test_while_one_of_the_pair_is_not_overloaded_the_request_goes_there() -> None:
    policy = DualPathDualMap(SETTINGS)
    engines = fleet(policy, 6)
    for prefix in range(40):
        asked = prefixed(f"r{prefix}", prefix)
        pair = pair_of(policy, asked, engines)
        pair[0].tok, pair[1].tok = 9000, 100
        choice = policy.choose(asked, engines, 0.0)
        assert choice is not None
        assert choice.engine is pair[1]
        pair[0].tok = pair[1].tok = 0


def test_a_short_read_queue_comes_before_a_longer_hit() -> None:
    policy = DualPathDualMap(SETTINGS)
    one, other = fleet(policy, 2)
    asked = prefixed("r", 1)
    one.cached.insert(asked.marks)
    one.node.read_q_tokens = 1001
    choice = policy.choose(asked, [one, other], 0.0)
    assert choice is not None
    assert choice.engine is other


def test_with_both_overloaded_it_is_held_and_past_the_slo_goes_to_the_whole_group() -> None:
    policy = DualPathDualMap(SETTINGS)
    engines = fleet(policy, 6)
    asked = prefixed("r", 1)
    pair = pair_of(policy, asked, engines)
    for engine in pair:
        engine.tok = 9000
    early, late = policy.choose(asked, engines, SLO_S), policy.choose(asked, engines, SLO_S + 0.1)
    assert early is not None
    assert late is not None
    assert early.engine in pair
    assert early.engine.overloaded
    assert late.engine not in pair
    assert (late.reason, late.engine.overloaded) == ("whole_group", False)


@given(st.lists(st.integers(0, 9000), min_size=6, max_size=6), st.integers(0, 50), st.floats(0, 10))
def test_an_overloaded_engine_is_only_ever_named_to_be_waited_for(
    loads: list[int], prefix: int, waited_s: float
) -> None:
    """Whoever is not overloaded may get it; an overloaded one is chosen only if both candidates are."""
    policy = DualPathDualMap(SETTINGS)
    engines = fleet(policy, 6)
    for engine, tok in zip(engines, loads, strict=True):
        engine.tok = tok
    asked = prefixed("r", prefix)
    choice = policy.choose(asked, engines, waited_s)
    assert choice is not None
    if choice.engine.overloaded:
        assert all(engine.overloaded for engine in pair_of(policy, asked, engines))
        assert waited_s <= SLO_S or all(engine.overloaded for engine in engines)

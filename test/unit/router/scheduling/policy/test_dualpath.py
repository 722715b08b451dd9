"""Algorithm 1: overloaded engines get nothing, short read queues come first, within a class the least tokens."""

from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cluster import Cluster
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.policy.dualpath import DualPath, best_of_classes

from test.unit.router.scheduling.engines import joined, request

ALPHA, BETA = 1000.0, 5000.0


def engines(*loads: tuple[int, int]) -> list[Engine]:
    """Prefill engines by (tok, read queue)."""
    cluster = Cluster()
    return [
        joined(cluster, f"p{i}", "prefill", tok=tok, read_q_tokens=queued, alpha_tokens=ALPHA, beta_tokens=BETA)
        for i, (tok, queued) in enumerate(loads)
    ]


def name_of(offered: list[Engine]) -> str | None:
    """Who gets the request."""
    choice = DualPath().choose(request(), offered, 0.0)
    return None if choice is None else choice.engine.engine_id


def test_the_least_tokens_among_short_read_queues() -> None:
    assert name_of(engines((500, 10), (300, 1000), (100, 1001))) == "p1"


def test_a_long_read_queue_only_without_a_short_one() -> None:
    assert name_of(engines((500, 2000), (300, 3000))) == "p1"


def test_limits_themselves_still_belong_to_the_better_class() -> None:
    assert name_of(engines((5000, 1000))) == "p0"
    assert name_of(engines((5001, 0))) is None


def test_the_head_waits_while_all_are_overloaded() -> None:
    assert name_of(engines((5001, 0), (9000, 0))) is None


def test_an_engine_that_reports_no_limits_is_never_overloaded_and_always_short() -> None:
    cluster = Cluster()
    unknown = cluster.join("p9", "prefill", "p9", "n")
    unknown.own_tok = 10**9
    unknown.settle()
    assert name_of([unknown]) == "p9"


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3000)), min_size=1, max_size=12))
def test_it_is_the_papers_rule(loads: list[tuple[int, int]]) -> None:
    """Against the definition, written out."""
    offered = engines(*loads)
    second = [i for i, (tok, queued) in enumerate(loads) if queued <= ALPHA and tok <= BETA]
    third = [i for i, (tok, queued) in enumerate(loads) if queued > ALPHA and tok <= BETA]
    choice = best_of_classes(offered)
    allowed = second or third
    if not allowed:
        assert choice is None
    else:
        assert choice is not None
        assert choice.engine in [offered[i] for i in allowed]
        assert choice.engine.tok == min(loads[i][0] for i in allowed)
        assert choice.reason == ("short_read_queue" if second else "long_read_queue")

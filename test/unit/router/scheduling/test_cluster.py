"""Engines and nodes: what is reported and what is assigned add up to what scheduling sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.cluster import REPORT_FRESH_S, Cluster
from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.node import REPORT_LAG_S

from test.unit.router.scheduling.engines import joined, report, request


def pair(cluster: Cluster) -> tuple[Engine, Engine]:
    """A prefill and a decode engine."""
    return joined(cluster, "p", "prefill"), joined(cluster, "d", "decode")


def test_an_engine_without_a_report_has_what_was_assigned_and_no_limits() -> None:
    cluster = Cluster()
    prefill = cluster.join("p", "prefill", "p", "n")
    decode = cluster.join("d", "decode", "d", "m")
    cluster.begin(request(prompt_tokens=50), (prefill, decode), 0.0, 0, 1.0)
    assert (prefill.seq, prefill.tok, prefill.node.read_q_tokens) == (1, 50, 50)
    assert (decode.seq, decode.tok, decode.node.read_q_tokens) == (1, 50, 0)
    assert prefill.alpha_tokens is prefill.beta_tokens is None
    assert not prefill.overloaded


@pytest.mark.parametrize(("reported", "own", "seen"), [(0, 2, 2), (5, 2, 5), (2, 2, 2)])
def test_neither_the_report_nor_the_own_assignments_are_forgotten(reported: int, own: int, seen: int) -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    for index in range(own):
        cluster.begin(request(f"r{index}", 10), (prefill, decode), 0.0, 0, 1.0)
    cluster.report(report("p", seq=reported, tok=10 * reported), 1.0)
    assert (prefill.seq, prefill.tok) == (seen, 10 * seen)


def test_what_others_have_sent_stays_counted_beside_new_assignments() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.report(report("p", seq=3, tok=300), 1.0)
    cluster.begin(request(prompt_tokens=10), (prefill, decode), 0.0, 0, 1.0)
    assert (prefill.seq, prefill.tok) == (4, 310)


def test_a_read_is_not_counted_twice_once_a_report_has_seen_it() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=80), (prefill, decode), 0.0, 0, 1.0)
    assert prefill.node.read_q_tokens == 80
    cluster.report(report("p", read_q_tokens=70), 1.0 + 2 * REPORT_LAG_S)
    assert prefill.node.read_q_tokens == 70


def test_a_read_just_assigned_is_counted_until_a_report_can_have_seen_it() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=80), (prefill, decode), 0.0, 0, 1.0)
    cluster.report(report("p", read_q_tokens=5), 1.0 + REPORT_LAG_S / 2)
    assert prefill.node.read_q_tokens == 85


def test_a_split_read_stands_in_both_queues() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=100), (prefill, decode), 0.25, 0, 1.0)
    assert (prefill.node.read_q_tokens, decode.node.read_q_tokens) == (75, 25)


@pytest.mark.parametrize("tokens", [1, 3, 101])
def test_the_parts_of_a_split_read_add_up(tokens: int) -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=tokens), (prefill, decode), 0.5, 0, 1.0)
    assert prefill.node.read_q_tokens + decode.node.read_q_tokens == tokens


def test_a_node_goes_with_its_last_engine() -> None:
    cluster = Cluster()
    joined(cluster, "p0", "prefill", node_id="n")
    joined(cluster, "p1", "prefill", node_id="n")
    assert list(cluster.nodes) == ["n"]
    cluster.leave("p0")
    assert list(cluster.nodes) == ["n"]
    cluster.leave("p1")
    assert not cluster.nodes


def test_engines_of_one_node_share_its_queue() -> None:
    cluster = Cluster()
    one = joined(cluster, "p0", "prefill", node_id="n")
    other = joined(cluster, "p1", "prefill", node_id="n", read_q_tokens=9)
    assert one.node is other.node
    assert one.node.read_q_tokens == 9


def test_an_old_report_counts_as_none() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.report(report("p", seq=5, tok=500, read_q_tokens=50, read_tokens_per_s=9.0), 1.0)
    cluster.begin(request(prompt_tokens=10), (prefill, decode), 0.0, 0, 1.0)
    cluster.expire(1.0 + REPORT_FRESH_S + 1.1)
    assert (prefill.seq, prefill.tok, prefill.node.read_q_tokens) == (1, 10, 10)
    assert (prefill.beta_tokens, prefill.free_kv_tokens, prefill.dual) == (None, None, False)
    assert prefill.node.read_tokens_per_s is None


def test_room_shrinks_with_each_assignment_until_the_next_report() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=100, output_tokens=20), (prefill, decode), 0.0, 0, 1.0)
    assert (decode.free_kv_tokens, decode.free_buffer_tokens) == (99_880, 99_900)
    cluster.report(report("d", free_kv_tokens=5), 2.0)
    assert decode.free_kv_tokens == 5


def test_only_new_tokens_wait_for_compute() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(prompt_tokens=1000), (prefill, decode), 0.0, 900, 1.0)
    assert prefill.pending_new_tokens == 100
    cluster.end_prefill("r")
    assert prefill.pending_new_tokens == 0


def test_the_end_of_prefill_leaves_the_decode_engine_its_work() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(), (prefill, decode), 0.5, 0, 1.0)
    assert cluster.end_prefill("r")
    assert not cluster.end_prefill("r")
    assert (prefill.own_seq, decode.own_seq) == (0, 1)
    assert cluster.end("r")
    assert not cluster.end("r")
    assert decode.own_seq == 0


def test_a_report_for_an_engine_nobody_knows_is_counted() -> None:
    cluster = Cluster()
    assert cluster.report(report("p"), 1.0) is None
    assert cluster.n_unknown_reports == 1


def test_work_on_an_engine_that_has_left_still_ends() -> None:
    cluster = Cluster()
    prefill, decode = pair(cluster)
    cluster.begin(request(), (prefill, decode), 0.5, 0, 1.0)
    cluster.leave("p")
    assert cluster.end("r")
    assert (prefill.own_seq, prefill.own_tok, decode.own_tok) == (0, 0, 0)


@given(st.data())
def test_tokens_are_conserved(data: st.DataObject) -> None:
    """At any time each engine's own tally is the sum over its unfinished requests; at the end all is zero."""
    cluster = Cluster()
    engines = (
        [joined(cluster, f"p{i}", "prefill") for i in range(2)],
        [joined(cluster, f"d{i}", "decode") for i in range(2)],
    )
    alive: dict[str, tuple[Engine, Engine, int, bool]] = {}
    for step in range(data.draw(st.integers(0, 40))):
        now_s = step * data.draw(st.floats(0, 0.3))
        action = data.draw(st.sampled_from(["begin", "end_prefill", "end", "report"]))
        if action == "begin":
            chosen = (data.draw(st.sampled_from(engines[0])), data.draw(st.sampled_from(engines[1])))
            tokens = data.draw(st.integers(1, 5000))
            share, hit = data.draw(st.floats(0, 1)), data.draw(st.integers(0, tokens))
            cluster.begin(request(f"r{step}", tokens), chosen, share, hit, now_s)
            alive[f"r{step}"] = (*chosen, tokens, True)
        elif action == "report":
            cluster.report(report(data.draw(st.sampled_from(["p0", "p1", "d0", "d1"])), tok=7), now_s)
        elif alive:
            name = data.draw(st.sampled_from(sorted(alive)))
            if action == "end":
                cluster.end(name)
                del alive[name]
            else:
                cluster.end_prefill(name)
                alive[name] = (*alive[name][:3], False)
        for engine in engines[0]:
            assert engine.own_tok == sum(t for p, _, t, prefilling in alive.values() if p is engine and prefilling)
        for engine in engines[1]:
            assert engine.own_tok == sum(t for _, d, t, _ in alive.values() if d is engine)
    for name in list(alive):
        cluster.end(name)
    for engine in (*engines[0], *engines[1]):
        assert (engine.own_seq, engine.own_tok, engine.pending_new_tokens, engine.node.own_reads_tokens) == (0, 0, 0, 0)
    assert cluster.work == {}

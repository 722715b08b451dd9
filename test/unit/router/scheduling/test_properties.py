"""Whatever comes in whatever order: every request goes to exactly one pair or stays, and nothing is left behind."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.router.scheduling.decode_choice import DecodeChoice
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.read_side import READ_SIDES, ReadSide
from sglang_dualpath.router.scheduling.request import Assignment
from sglang_dualpath.router.scheduling.scheduler import Scheduler

from test.unit.router.scheduling.engines import joined, report, request, scheduler

ENGINES = ("p0", "p1", "p2", "d0", "d1")

submits = st.tuples(
    st.just("submit"),
    st.integers(1, 3000),
    st.integers(0, 500),
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 9),
    st.sets(st.sampled_from(ENGINES), max_size=3),
)
others = st.one_of(
    st.tuples(
        st.just("report"), st.sampled_from(ENGINES), st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 3000)
    ),
    st.tuples(st.just("available"), st.sampled_from(ENGINES), st.booleans()),
    st.tuples(st.sampled_from(["end", "end_prefill", "withdraw"]), st.integers(0, 60)),
    st.tuples(st.just("leave"), st.sampled_from(ENGINES)),
    st.tuples(st.just("again"), st.integers(0, 60), st.integers(1, 3000)),
    st.tuples(st.just("wait"), st.floats(0.0, 20.0)),
)
histories = st.lists(st.one_of(submits, others), max_size=60)


class History:
    """Plays a history, and checks every decision as it is made."""

    def __init__(self, policy: str, decode: str, read_side: str) -> None:
        rules: dict[str, Any] = {"decode": DecodeChoice(decode, 1), "read_side": ReadSide(read_side)}
        self.scheduler: Scheduler = scheduler(3, 2, POLICIES[policy](PolicySettings(seed=1)), **rules)
        self.holds = self.scheduler.policy.holds or policy == "dualpath"
        self.now_s = 0.0
        self.submitted: set[str] = set()
        self.tokens: dict[str, int] = {}
        self.withdrawn: set[str] = set()
        self.placed: dict[str, Assignment] = {}
        self.unplaceable: set[str] = set()
        self.log: list[tuple[str, str, str, float]] = []

    def play(self, history: list[tuple[Any, ...]]) -> None:
        """All of it."""
        for step, (kind, *arguments) in enumerate(history):
            self._act(step, kind, arguments)
            self._run()
            self._check_tallies()

    def _act(self, step: int, kind: str, arguments: list[Any]) -> None:
        made = self.scheduler
        if kind == "submit":
            tokens, output, priority, prefix, n_keys, passed_over = arguments
            keys = tuple(hash((prefix, i)) & (2**64 - 1) for i in range(n_keys))
            name = f"r{step}"
            fields = {"output_tokens": output, "priority": priority, "keys": keys, "arrived_s": self.now_s}
            made.submit(request(name, tokens, passed_over=frozenset(passed_over), **fields))
            self.submitted.add(name)
            self.tokens[name] = tokens
        elif kind == "again":
            # Whoever gives up while waiting comes again under its id, with another prompt.
            name = f"r{arguments[0]}"
            if made.withdraw(name):
                made.submit(request(name, arguments[1], arrived_s=self.now_s))
                self.tokens[name] = arguments[1]
        elif kind == "leave":
            made.leave(arguments[0])
        elif kind in ("report", "available") and arguments[0] not in made.cluster.engines:
            joined(made.cluster, arguments[0], "prefill" if arguments[0].startswith("p") else "decode")
        elif kind == "report":
            engine_id, tok, queued, free = arguments
            made.cluster.report(
                report(engine_id, seq=tok // 100, tok=tok, read_q_tokens=queued, free_kv_tokens=free), self.now_s
            )
        elif kind == "available":
            made.set_available(made.cluster.engines[arguments[0]], arguments[1])
        elif kind == "wait":
            self.now_s += arguments[0]
        elif kind == "withdraw":
            if made.withdraw(f"r{arguments[0]}"):
                self.withdrawn.add(f"r{arguments[0]}")
        else:
            getattr(made, kind)(f"r{arguments[0]}")

    def _check_tallies(self) -> None:
        """tok of each engine is that of its unfinished requests, whatever else is known of it."""
        work = list(self.scheduler.cluster.work.values())
        for engine in self.scheduler.cluster.engines.values():
            unfinished = [w for w in work if w.decode is engine or (w.prefill is engine and w.prefilling)]
            assert (engine.own_seq, engine.own_tok) == (len(unfinished), sum(w.prompt_tokens for w in unfinished))
            assert engine.seq >= engine.own_seq
            assert engine.tok >= engine.own_tok

    def _run(self) -> None:
        for made in self.scheduler.run(self.now_s):
            if not isinstance(made, Assignment):
                self.unplaceable.add(made.request.request_id)
                continue
            assert made.request_id not in self.placed
            engines = self.scheduler.cluster.engines
            prefill, decode = engines[made.prefill_id], engines[made.decode_id]
            assert (prefill.role, decode.role) == ("prefill", "decode")
            assert prefill.available
            assert decode.available
            work = self.scheduler.cluster.work[made.request_id]
            assert work.prompt_tokens == self.tokens[made.request_id]
            assert 0.0 <= made.decode_read_share <= 1.0
            if self.holds and prefill.beta_tokens is not None:
                assert prefill.tok - work.prompt_tokens <= prefill.beta_tokens, "an engine in C1 got a request"
            self.placed[made.request_id] = made
            self.log.append((made.request_id, made.prefill_id, made.decode_id, made.decode_read_share))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=40)
@given(histories, st.sampled_from(["two_level", "least_loaded"]), st.sampled_from(READ_SIDES))
def test_every_request_is_in_one_place_and_all_work_is_taken_off_again(
    policy: str, history: list[tuple[Any, ...]], decode: str, read_side: str
) -> None:
    played = History(policy, decode, read_side)
    played.play(history)
    ended = [set(played.placed), played.withdrawn, played.unplaceable]
    assert sum(map(len, ended)) == len(set().union(*ended))
    assert played.scheduler.n_waiting == len(played.submitted) - len(set().union(*ended))
    for name in played.placed:
        played.scheduler.end(name)
    for engine in played.scheduler.cluster.engines.values():
        assert (engine.own_seq, engine.own_tok, engine.pending_new_tokens) == (0, 0, 0)
    assert all(node.own_reads_tokens == 0 for node in played.scheduler.cluster.nodes.values())


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=15)
@given(histories)
def test_nobody_starves(policy: str, history: list[tuple[Any, ...]]) -> None:
    """Once engines are there, idle and roomy, everyone who waits is placed, however things stood before."""
    played = History(policy, "two_level", "shorter_queue")
    played.play(history)
    made = played.scheduler
    for _ in range(200):
        if not made.n_waiting:
            break
        for name in list(played.placed):
            made.end(name)
        played.now_s += 11.0
        for engine_id in ENGINES:
            if engine_id not in made.cluster.engines:
                made.cluster.join(engine_id, "prefill" if engine_id.startswith("p") else "decode", engine_id, engine_id)
            made.cluster.report(report(engine_id), played.now_s)
            made.set_available(made.cluster.engines[engine_id], True)
        played._run()
    assert made.n_waiting == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=10)
@given(histories)
def test_one_history_gives_one_outcome(policy: str, history: list[tuple[Any, ...]]) -> None:
    runs = [History(policy, "random", "alternate") for _ in range(2)]
    for played in runs:
        played.play(history)
    assert runs[0].log == runs[1].log

"""What holds of every policy that a user can name."""

import sys

import pytest
from hypothesis import given
from sglang_dualpath.router.scheduling.engine import EngineLoad, RequestFacts
from sglang_dualpath.router.scheduling.policies import POLICIES

from test.unit.router.scheduling.loads import fleets, requests


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(request_facts=requests, prefill=fleets("prefill"), decode=fleets("decode"))
def test_a_policy_chooses_among_what_it_is_offered_and_changes_nothing(
    name: str, request_facts: RequestFacts, prefill: list[EngineLoad], decode: list[EngineLoad]
) -> None:
    offered = (list(prefill), list(decode))
    made = POLICIES[name]().assign(request_facts, prefill, decode)
    assert (prefill, decode) == offered
    if made is not None:
        assert made.prefill_url in {engine.url for engine in prefill}
        assert made.decode_url in {engine.url for engine in decode}
        assert made.read_side in ("prefill", "decode")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_engines_that_have_not_reported_are_used(name: str) -> None:
    silent = [EngineLoad("p", "prefill", seq=10**6, tok=10**9, read_q_tokens=10**9, dual=False)]
    made = POLICIES[name]().assign(RequestFacts(1), silent, [EngineLoad("d", "decode", 0, 0, 0, dual=False)])
    assert made is not None and made.read_side == "prefill"


def test_policies_know_nothing_of_the_network() -> None:
    networking = {"aiohttp", "zmq", "asyncio", "socket"}
    for name in list(sys.modules):
        if name.startswith("sglang_dualpath.router.scheduling"):
            assert not networking & set(vars(sys.modules[name]))

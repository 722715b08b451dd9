"""Every full block is written once: a prompt's out of the buffer, a decoded one out of the pool."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang_dualpath.blocks.key import BlockKey, BlockKeyChain
from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.decode.persistence import BlockPersistence, DecodedBlocks
from sglang_dualpath.engine.resources import EngineResources
from sglang_dualpath.store.block_store import ReadOutcome

from test.unit.engine_parts import BLOCK_TOKENS, WAIT_S, assert_nothing_held, prompt_chain

ROW = 2
"""The request's row of `req_to_token`."""


class Persisted:
    """A persistence over a pool in which token t of the request lies at slot `slots[t]`."""

    def __init__(self, resources: EngineResources) -> None:
        self.resources = resources
        self.slots = torch.randperm(1024, generator=torch.Generator().manual_seed(1))[:600]
        table = torch.zeros(4, 600, dtype=torch.int32)
        table[ROW] = self.slots
        self.persistence = BlockPersistence(resources, table)
        self.submitted: list[BlockKey] = []
        self._submit = resources.writer.submit
        resources.writer.submit = self._record  # type: ignore[method-assign]

    def _record(self, key: BlockKey, lease: BlockLease, index: int) -> bool:
        self.submitted.append(key)
        return self._submit(key, lease, index)

    def request(self, prompt_tokens: int) -> SimpleNamespace:
        """A request as it is right after its admission."""
        chain = prompt_chain(self.resources.namespace, prompt_tokens)
        return SimpleNamespace(
            origin_input_ids=list(np.random.default_rng(0).integers(0, 1000, prompt_tokens)),
            output_ids=[],
            kv=SimpleNamespace(req_pool_idx=ROW),
            dualpath_blocks=DecodedBlocks(chain, len(chain.keys)),
        )

    def decode(self, request: SimpleNamespace, n_tokens: int) -> None:
        """Decode steps, each as upstream's scheduler runs it."""
        for _ in range(n_tokens):
            self.persistence.persist_decoded(request)
            request.output_ids.append(len(request.output_ids) % 7)

    def stored(self, key: BlockKey) -> np.ndarray:
        """A block's content in the store."""
        assert self.resources.writer.drain(WAIT_S)
        geometry = self.resources.paged.geometry
        block = np.empty((geometry.n_layers, geometry.block_tokens, geometry.token_bytes), dtype=np.uint8)
        assert self.resources.store.read(key, memoryview(block.reshape(-1))) is ReadOutcome.OK
        return block

    def fallbacks(self) -> dict[str, int]:
        """What has been counted."""
        return self.resources.counters.snapshot()["fallbacks"]


@pytest.fixture
def persisted(resources: EngineResources) -> Persisted:
    """A decode engine's persistence."""
    return Persisted(resources)


def full_chain(persisted: Persisted, request: SimpleNamespace) -> BlockKeyChain:
    """The keys that the next turn will look for."""
    chain = BlockKeyChain(persisted.resources.namespace)
    chain.extend([*request.origin_input_ids, *request.output_ids])
    return chain


def test_a_prompts_new_blocks_are_written_and_those_just_read_are_not(persisted: Persisted) -> None:
    chain = prompt_chain(persisted.resources.namespace, 4 * BLOCK_TOKENS + 5)
    lease = persisted.resources.buffer.lease(5)
    assert lease is not None
    for index in range(5):
        lease.array(index)[:] = index
    persisted.persistence.persist_prompt(chain, lease, known_blocks=1)
    lease.release()
    assert persisted.submitted == chain.keys[1:4]
    for index in range(1, 4):
        assert (persisted.stored(chain.keys[index]) == index).all()
    assert persisted.resources.store.present_prefix(chain.keys) == 0
    assert_nothing_held(persisted.resources)


def test_a_decoded_block_is_written_once_when_it_is_full(persisted: Persisted) -> None:
    request = persisted.request(BLOCK_TOKENS + 10)
    persisted.decode(request, BLOCK_TOKENS - 10)
    assert persisted.submitted == []
    persisted.decode(request, 1)
    assert persisted.submitted == full_chain(persisted, request).keys[1:2]
    persisted.decode(request, 5)
    assert len(persisted.submitted) == 1


def test_a_decoded_blocks_key_is_what_the_next_turn_looks_for(persisted: Persisted) -> None:
    request = persisted.request(10)
    persisted.decode(request, 3 * BLOCK_TOKENS)
    assert persisted.submitted == full_chain(persisted, request).keys[: len(persisted.submitted)]
    assert len(persisted.submitted) == 3


def test_a_decoded_block_holds_the_pools_rows_of_its_tokens(persisted: Persisted) -> None:
    request = persisted.request(BLOCK_TOKENS + 10)
    persisted.decode(request, BLOCK_TOKENS)
    block = persisted.stored(persisted.submitted[0])
    paged = persisted.resources.paged
    slots = persisted.slots[BLOCK_TOKENS : 2 * BLOCK_TOKENS]
    for layer in range(paged.geometry.n_layers):
        rows = np.empty((BLOCK_TOKENS, paged.geometry.token_bytes), dtype=np.uint8)
        paged.gather(layer, slots, rows)
        assert np.array_equal(block[layer], rows)
    assert_nothing_held(persisted.resources)


def test_a_request_without_blocks_of_its_own_is_left_alone(persisted: Persisted) -> None:
    persisted.persistence.persist_decoded(SimpleNamespace(origin_input_ids=[1] * 64, output_ids=[2] * 64))
    assert persisted.submitted == []


def test_a_request_that_has_lost_its_slots_writes_nothing(persisted: Persisted) -> None:
    request = persisted.request(10)
    request.kv.req_pool_idx = None
    persisted.decode(request, 2 * BLOCK_TOKENS)
    assert persisted.submitted == []


def test_no_room_in_the_buffer_is_counted_and_the_next_block_is_tried(persisted: Persisted) -> None:
    request = persisted.request(BLOCK_TOKENS)
    lease = persisted.resources.buffer.lease(16)
    assert lease is not None
    persisted.decode(request, BLOCK_TOKENS + 1)
    assert persisted.submitted == []
    assert persisted.fallbacks() == {"persist_no_buffer": 1}
    lease.release()
    persisted.decode(request, BLOCK_TOKENS)
    assert persisted.submitted == full_chain(persisted, request).keys[2:3]


def test_a_full_write_queue_is_counted(persisted: Persisted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persisted, "_submit", lambda *_: False)
    request = persisted.request(BLOCK_TOKENS)
    persisted.decode(request, BLOCK_TOKENS + 1)
    chain = prompt_chain(persisted.resources.namespace, 2 * BLOCK_TOKENS, 3)
    lease = persisted.resources.buffer.lease(2)
    assert lease is not None
    persisted.persistence.persist_prompt(chain, lease, known_blocks=0)
    lease.release()
    assert persisted.fallbacks() == {"persist_dropped": 3}
    assert_nothing_held(persisted.resources)


def test_after_new_weights_requests_that_began_with_the_old_ones_write_nothing(persisted: Persisted) -> None:
    request = persisted.request(10)
    chain = prompt_chain(persisted.resources.namespace, 2 * BLOCK_TOKENS)
    lease = persisted.resources.buffer.lease(2)
    assert lease is not None
    persisted.resources.revise_weights("new")
    persisted.decode(request, 2 * BLOCK_TOKENS)
    persisted.persistence.persist_prompt(chain, lease, known_blocks=0)
    lease.release()
    assert persisted.submitted == []
    assert_nothing_held(persisted.resources)

"""The buffer: every block is free or in exactly one lease, and a lease's memory is its own until its last holder goes."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.buffer.block_buffer import BlockBuffer, BlockLease

GEOMETRY = BlockGeometry(n_layers=2, token_bytes=3, block_tokens=4)
CAPACITY = 8


def buffer_of(n_blocks: int = CAPACITY) -> BlockBuffer:
    """A buffer of tiny blocks."""
    return BlockBuffer(GEOMETRY, n_blocks * GEOMETRY.full_block_bytes)


def leased(buffer: BlockBuffer, n_blocks: int) -> BlockLease:
    """A lease that there is room for."""
    lease = buffer.lease(n_blocks)
    assert lease is not None
    return lease


def test_capacity_is_rounded_down_to_whole_blocks() -> None:
    buffer = BlockBuffer(GEOMETRY, 3 * GEOMETRY.full_block_bytes + 1)
    assert buffer.capacity_blocks == 3
    assert buffer.nbytes == 3 * GEOMETRY.full_block_bytes


def test_a_buffer_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no block"):
        BlockBuffer(GEOMETRY, GEOMETRY.full_block_bytes - 1)


def test_memory_begins_at_a_page_as_registration_wants_it() -> None:
    assert buffer_of().base_address % 4096 == 0


def test_a_lease_that_does_not_fit_now_is_none_and_takes_nothing() -> None:
    buffer = buffer_of()
    lease = leased(buffer, 5)
    assert buffer.lease(4) is None
    assert (buffer.n_used_blocks, buffer.n_leases) == (5, 1)
    lease.release()
    assert buffer.lease(CAPACITY) is not None


@pytest.mark.parametrize("n_blocks", [0, -1])
def test_a_lease_of_nothing_is_a_mistake(n_blocks: int) -> None:
    with pytest.raises(ValueError, match="lease of"):
        buffer_of().lease(n_blocks)


def test_the_last_holder_gives_the_blocks_back() -> None:
    buffer = buffer_of()
    lease = leased(buffer, 3)
    assert lease.retain() is lease
    lease.release()
    assert buffer.n_used_blocks == 3
    lease.release()
    assert (buffer.n_used_blocks, buffer.n_leases) == (0, 0)


def test_a_lease_that_has_gone_back_can_be_neither_released_nor_retained() -> None:
    buffer = buffer_of()
    lease = leased(buffer, 3)
    lease.release()
    with pytest.raises(RuntimeError, match="no holder left"):
        lease.release()
    with pytest.raises(RuntimeError, match="released by its last holder"):
        lease.retain()
    assert (buffer.n_free_blocks, buffer.n_leases) == (CAPACITY, 0)


def test_view_array_and_address_are_the_same_memory() -> None:
    buffer = buffer_of()
    leased(buffer, 2)
    lease = leased(buffer, 2)
    content = bytes(range(GEOMETRY.full_block_bytes))
    lease.view(1)[:] = content
    assert len(lease.view(1)) == GEOMETRY.full_block_bytes
    assert lease.array(1).shape == (GEOMETRY.n_layers, GEOMETRY.block_tokens, GEOMETRY.token_bytes)
    assert lease.array(1).tobytes() == content
    assert ctypes.string_at(lease.address(1), GEOMETRY.full_block_bytes) == content
    lease.array(1)[0, 0, 0] = 99
    assert lease.view(1)[0] == 99


def test_layer_rows_are_a_copy_of_one_layer_of_blocks_in_order() -> None:
    lease = leased(buffer_of(), 4)
    for index in range(4):
        lease.array(index)[:] = 10 * index
        lease.array(index)[1] += 1
    rows = lease.layer_rows(1, 1, 3)
    assert rows.shape == (2 * GEOMETRY.block_tokens, GEOMETRY.token_bytes)
    assert np.array_equal(rows[: GEOMETRY.block_tokens], np.full((4, 3), 11))
    assert np.array_equal(rows[GEOMETRY.block_tokens :], np.full((4, 3), 21))
    rows[:] = 0
    assert (lease.array(1)[1] == 11).all()


def test_blocks_that_have_been_released_are_leased_again_and_their_memory_with_them() -> None:
    buffer = buffer_of(1)
    first = leased(buffer, 1)
    address = first.address(0)
    first.release()
    assert leased(buffer, 1).address(0) == address


def test_threads_that_lease_and_release_leave_nothing() -> None:
    buffer = buffer_of()

    def work(seed: int) -> int:
        generator = np.random.default_rng(seed)
        wrong = 0
        for _ in range(200):
            lease = buffer.lease(int(generator.integers(1, 5)))
            if lease is None:
                continue
            for index in range(lease.n_blocks):
                lease.array(index)[:] = seed
            wrong += sum(int((lease.array(index) != seed).any()) for index in range(lease.n_blocks))
            lease.release()
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) == 0
    assert (buffer.n_free_blocks, buffer.n_used_blocks, buffer.n_leases) == (CAPACITY, 0, 0)


class LeaseAccounting(RuleBasedStateMachine):
    """Any order of leases, retains and releases."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = buffer_of()
        self.holders: dict[BlockLease, int] = {}

    @rule(n_blocks=st.integers(1, CAPACITY + 1))
    def lease(self, n_blocks: int) -> None:
        free = self.buffer.n_free_blocks
        lease = self.buffer.lease(n_blocks)
        assert (lease is not None) == (n_blocks <= free)
        if lease is not None:
            assert lease.n_blocks == n_blocks
            self.holders[lease] = 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(list(self.holders)))
        lease.retain()
        self.holders[lease] += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(list(self.holders)))
        lease.release()
        self.holders[lease] -= 1
        if self.holders[lease] == 0:
            del self.holders[lease]

    @invariant()
    def every_block_is_free_or_in_one_lease(self) -> None:
        held = [block for lease in self.holders for block in lease.blocks]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(CAPACITY))
        assert self.buffer.n_used_blocks == len(held)
        assert self.buffer.n_free_blocks == CAPACITY - len(held)
        assert self.buffer.n_leases == len(self.holders)


TestLeaseAccounting = LeaseAccounting.TestCase
TestLeaseAccounting.settings = settings(max_examples=50, deadline=None)

"""A room: jobs hold it open, its leases go once, and its hit is what lies in buffers without a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.buffer.block_buffer import BlockBuffer
from sglang_dualpath.prefill.room import LocalRun, PrefillRoom

GEOMETRY = BlockGeometry(n_layers=1, token_bytes=1)


def buffer_of(n_blocks: int) -> BlockBuffer:
    """A buffer of tiny blocks."""
    return BlockBuffer(GEOMETRY, n_blocks * GEOMETRY.full_block_bytes)


def run_of(buffer: BlockBuffer, first_block: int, n_blocks: int, good_blocks: int) -> LocalRun:
    """A run of blocks that this engine has read."""
    lease = buffer.lease(n_blocks)
    assert lease is not None
    return LocalRun(first_block, lease, good_blocks=good_blocks)


def test_a_job_begins_while_the_room_is_open() -> None:
    room = PrefillRoom(1, 0.0)
    assert room.begin_job()
    assert room.begin_job()
    assert room.end_job() == 1
    assert room.end_job() == 0


@pytest.mark.parametrize("how", ["failed", "cleared"])
def test_no_job_begins_in_a_room_that_has_ended(how: str) -> None:
    room = PrefillRoom(1, 0.0)
    if how == "failed":
        room.failure = "why"
    else:
        room.cleared = True
    assert room.ended
    assert not room.begin_job()
    assert room.jobs == 0


def test_a_job_that_never_began_cannot_end() -> None:
    with pytest.raises(RuntimeError, match="room 7"):
        PrefillRoom(7, 0.0).end_job()


def test_runs_are_released_once_and_jobs_keep_their_own_hold() -> None:
    buffer = buffer_of(4)
    room = PrefillRoom(1, 0.0)
    run = run_of(buffer, 0, 3, 3)
    room.runs.append(run)
    job = run.lease.retain()
    room.release_runs()
    room.release_runs()
    assert not room.holds_runs
    assert room.runs == []
    assert buffer.n_used_blocks == 3
    job.release()
    assert buffer.n_used_blocks == 0


def test_without_reads_nothing_is_hit() -> None:
    assert PrefillRoom(1, 0.0).hit_end() == 0


@given(
    remote=st.integers(0, 6),
    runs=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(0, 4)), max_size=4),
)
def test_the_hit_ends_at_the_first_block_that_is_in_no_buffer(remote: int, runs: list[tuple[int, int, int]]) -> None:
    buffer = buffer_of(16)
    room = PrefillRoom(1, 0.0, remote_ready_blocks=remote)
    present = set(range(remote))
    for first, n_blocks, good in runs:
        good = min(good, n_blocks)
        room.runs.append(run_of(buffer, first, n_blocks, good))
        present |= set(range(first, first + good))
    expected = 0
    while expected in present:
        expected += 1
    assert room.hit_end() == expected

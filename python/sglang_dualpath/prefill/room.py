"""One request on the prefill side: what is read where, who still uses its memory, and whether it may be computed."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.exchange.messages import Destination
from sglang_dualpath.store.read_queue import BatchRead


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """What the scheduler knows of a request when it arrives."""

    rid: str
    prompt_tokens: int
    keys: Sequence[BlockKey]
    """Keys of the prompt's full blocks."""


@dataclass(slots=True)
class LocalRun:
    """Consecutive blocks that this engine reads itself, from `first_block` on, into a lease of its buffer."""

    first_block: int
    lease: BlockLease
    read: BatchRead | None = None
    good_blocks: int = 0


@dataclass(slots=True)
class PrefillRoom:
    """The state of one `bootstrap_room`; every field is guarded by `lock`.

    `jobs` counts background work that touches this request's memory here or the decode engine's buffer: an abort is
    acknowledged, and the room forgotten, only when it is 0.
    """

    room: int
    created_at_s: float
    lock: threading.RLock = field(default_factory=threading.RLock)
    request: PrefillRequest | None = None
    destination: Destination | None = None
    remote_ready_blocks: int | None = None
    early_progress_blocks: int | None = None
    """Progress that came before the request did."""
    runs: list[LocalRun] = field(default_factory=list)
    read_to_block: int = 0
    usable_hit_blocks: int = 0
    started: bool = False
    eligible: bool = False
    failure: str | None = None
    cleared: bool = False
    jobs: int = 0
    holds_runs: bool = True
    streamed_bytes: int = 0
    streamed_to_token: int = 0
    device_hit_tokens: int = 0
    stage_began_s: float | None = None
    """When the stage that the request is in began; None before it is here."""

    @property
    def ended(self) -> bool:
        """No new job may begin: the request has failed or upstream has let go of it."""
        return self.failure is not None or self.cleared

    def leave_stage(self, now_s: float) -> float:
        """Seconds since the last call; the first one only begins."""
        began_s, self.stage_began_s = self.stage_began_s, now_s
        return 0.0 if began_s is None else now_s - began_s

    def describe(self) -> dict[str, Any]:
        """Where the request stands, for people who look for one that hangs."""
        with self.lock:
            return {
                "room": self.room,
                "rid": None if self.request is None else self.request.rid,
                "destination_known": self.destination is not None,
                "reading": self.started and not self.eligible,
                "eligible": self.eligible,
                "failure": self.failure,
                "cleared": self.cleared,
                "jobs": self.jobs,
            }

    def begin_job(self) -> bool:
        """Count one more background job; False, and nothing counted, when the room has ended."""
        with self.lock:
            if self.ended:
                return False
            self.jobs += 1
            return True

    def end_job(self) -> int:
        """Count one job less; returns how many are left."""
        with self.lock:
            if self.jobs <= 0:
                raise RuntimeError(f"room {self.room}: a job ended that never began")
            self.jobs -= 1
            return self.jobs

    def release_runs(self) -> None:
        """Let go of the room's own hold on its leases; jobs keep theirs. Safe to call again."""
        with self.lock:
            if not self.holds_runs:
                return
            self.holds_runs = False
            runs, self.runs = self.runs, []
        for run in runs:
            run.lease.release()

    def hit_end(self) -> int:
        """Leading blocks that are in a DRAM buffer, the peer's first, then this engine's."""
        end = self.remote_ready_blocks or 0
        for run in sorted(self.runs, key=lambda run: run.first_block):
            if run.first_block > end:
                break
            end = max(end, run.first_block + run.good_blocks)
        return end

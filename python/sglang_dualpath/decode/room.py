"""One request on the decode side, from its arrival to its admission."""

import threading
from dataclasses import dataclass, field
from typing import Any

from sglang_dualpath.blocks.key import BlockKeyChain
from sglang_dualpath.buffer.block_buffer import BlockLease
from sglang_dualpath.store.read_queue import BatchRead


@dataclass(slots=True)
class DecodeRoom:
    """The state of one `bootstrap_room`; guarded by `lock` where threads meet.

    `lease` holds the whole prompt's KV. It may go only when neither this engine's reader (`read`) nor the prefill engine
    (told of it once `sent`) can touch it any more.
    """

    room: int
    rid: str
    bootstrap_addr: str
    prompt_tokens: int
    chain: BlockKeyChain
    """Keys of the prompt, to be extended by what is decoded."""
    planned_share: float | None
    """Of its cached blocks, what the router plans this engine to read; None without a plan."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    lease: BlockLease | None = None
    read: BatchRead | None = None
    hit_blocks: int = 0
    ready_blocks: int = 0
    delegated_tokens: int = 0
    planning: bool = False
    sent: bool = False
    aborted: bool = False
    peer_lost: bool = False
    complete_at_s: float | None = None
    """When its prompt was found complete in the buffer."""

    def describe(self) -> dict[str, Any]:
        """Where the request stands, for people who look for one that hangs."""
        with self.lock:
            return {
                "room": self.room,
                "rid": self.rid,
                "leased": self.lease is not None,
                "planning": self.planning,
                "reading": self.is_reading,
                "sent_to_prefill": self.sent,
                "aborted": self.aborted,
                "peer_lost": self.peer_lost,
            }

    def release(self) -> None:
        """Let go of the buffer; safe to call again."""
        with self.lock:
            lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    @property
    def is_reading(self) -> bool:
        """Whether this engine may still write into the lease or send its address out."""
        return self.planning or (self.read is not None and not self.read.done.is_set())

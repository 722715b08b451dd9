"""What a store of Full Blocks promises."""

import enum
from collections.abc import Sequence
from typing import Protocol

from sglang_dualpath.blocks.key import BlockKey


class ReadOutcome(enum.Enum):
    """How the read of one block ended."""

    OK = "ok"
    MISSING = "missing"
    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not tried: an earlier block of its batch failed, or the batch was cancelled."""


class WriteOutcome(enum.Enum):
    """How the write of one block ended."""

    WRITTEN = "written"
    PRESENT = "present"
    FULL = "full"
    FAILED = "failed"


class BlockStore(Protocol):
    """Persistent Full Blocks by key. All calls are thread-safe, and none raises on what it finds in the store."""

    unlimited: bool
    """Whether reads are exempt from the emulated storage NIC."""

    def present_prefix(self, keys: Sequence[BlockKey]) -> int:
        """How many leading keys are present. Raises OSError where the store cannot be reached."""
        ...

    def read(self, key: BlockKey, into: memoryview) -> ReadOutcome:
        """Read a block, checked for length and checksum; a bad one is removed, so that it is written anew."""
        ...

    def write(self, key: BlockKey, block: memoryview) -> WriteOutcome:
        """Persist a block: complete or absent for every reader at every moment."""
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...

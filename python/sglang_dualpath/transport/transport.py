"""What moves bytes between two engines' registered memory."""

from collections.abc import Sequence
from typing import Protocol


class TransferError(RuntimeError):
    """A transfer did not complete; which of its pieces arrived is unknown, but none is under way any more."""


class Transport(Protocol):
    """One-sided reads and writes. Thread-safe; each call returns when its data has moved, or raises TransferError."""

    session: str
    """How peers address this engine's memory."""

    def register(self, address: int, n_bytes: int) -> None:
        """Make memory reachable: for peers, and as the local end of a transfer."""
        ...

    def read(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy `lengths[i]` bytes from `remote[i]` of `peer` to `local[i]`, for all i."""
        ...

    def write(self, peer: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy `lengths[i]` bytes from `local[i]` to `remote[i]` of `peer`, for all i."""
        ...

    def close(self) -> None:
        """Unregister and stop."""
        ...

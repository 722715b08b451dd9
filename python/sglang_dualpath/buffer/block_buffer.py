"""A bounded pool of Full Blocks in DRAM, handed out as leases."""

import mmap
import threading

import numpy as np

from sglang_dualpath.blocks.geometry import BlockGeometry


class BlockLease:
    """Blocks held together; they return to the pool when the last holder lets go. Thread-safe."""

    def __init__(self, buffer: "BlockBuffer", blocks: tuple[int, ...]) -> None:
        self._buffer = buffer
        self._holders = 1
        self.blocks = blocks

    @property
    def n_blocks(self) -> int:
        """How many blocks the lease holds."""
        return len(self.blocks)

    def address(self, index: int) -> int:
        """Memory address of the lease's `index`-th block."""
        return self._buffer.base_address + self.blocks[index] * self._buffer.geometry.full_block_bytes

    def view(self, index: int) -> memoryview:
        """The `index`-th block as `full_block_bytes` writable bytes."""
        return memoryview(self._buffer.blocks[self.blocks[index]].reshape(-1))

    def array(self, index: int) -> np.ndarray:
        """The `index`-th block as uint8 `[n_layers, block_tokens, token_bytes]`."""
        return self._buffer.blocks[self.blocks[index]]

    def layer_rows(self, layer: int, first: int, stop: int) -> np.ndarray:
        """A copy of one layer of blocks [first, stop), as uint8 `[(stop - first) * block_tokens, token_bytes]`."""
        blocks = self._buffer.blocks[list(self.blocks[first:stop]), layer]
        return blocks.reshape(-1, self._buffer.geometry.token_bytes)

    def retain(self) -> "BlockLease":
        """One more holder. Raises RuntimeError once the blocks have gone back."""
        with self._buffer.lock:
            if self._holders == 0:
                raise RuntimeError("retain of a lease that was released by its last holder")
            self._holders += 1
        return self

    def release(self) -> None:
        """One holder less. Raises RuntimeError when there is none left."""
        with self._buffer.lock:
            if self._holders == 0:
                raise RuntimeError("release of a lease that has no holder left")
            self._holders -= 1
            if self._holders == 0:
                self._buffer.take_back(self)


class BlockBuffer:
    """`capacity_bytes` of DRAM cut into Full Blocks; `blocks` is uint8 `[capacity, n_layers, block_tokens, token_bytes]`."""

    def __init__(self, geometry: BlockGeometry, capacity_bytes: int) -> None:
        self.geometry = geometry
        self.capacity_blocks = capacity_bytes // geometry.full_block_bytes
        if self.capacity_blocks < 1:
            raise ValueError(f"{capacity_bytes} bytes hold no block of {geometry.full_block_bytes} bytes")
        self.nbytes = self.capacity_blocks * geometry.full_block_bytes
        # Anonymous memory: page-aligned for registration, and physical only once touched.
        self._region = mmap.mmap(-1, self.nbytes)
        flat = np.frombuffer(self._region, dtype=np.uint8)
        self.base_address = flat.ctypes.data
        shape = (self.capacity_blocks, geometry.n_layers, geometry.block_tokens, geometry.token_bytes)
        self.blocks = flat.reshape(shape)
        self.lock = threading.Lock()
        self._free = list(range(self.capacity_blocks - 1, -1, -1))
        self.n_leases = 0

    @property
    def n_free_blocks(self) -> int:
        """Blocks that no lease holds."""
        return len(self._free)

    @property
    def n_used_blocks(self) -> int:
        """Blocks held by leases."""
        return self.capacity_blocks - len(self._free)

    def lease(self, n_blocks: int) -> BlockLease | None:
        """A lease of `n_blocks`, or None while so many are not free."""
        if n_blocks < 1:
            raise ValueError(f"a lease of {n_blocks} blocks")
        with self.lock:
            if n_blocks > len(self._free):
                return None
            blocks = tuple(self._free.pop() for _ in range(n_blocks))
            self.n_leases += 1
        return BlockLease(self, blocks)

    def take_back(self, lease: BlockLease) -> None:
        """Called by the lease's last release, with `lock` held."""
        self._free.extend(reversed(lease.blocks))
        self.n_leases -= 1

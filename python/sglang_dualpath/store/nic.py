"""One node's storage NIC: its queue of waiting tokens, shared by the node's engines, and in development its bandwidth.

The state lives in a small file in shared memory, one a node id, guarded by a file lock: a clock of when the emulated
wire is next free, and a row a process of how many tokens it has queued.
"""

import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
from pathlib import Path

from sglang_dualpath.store.file import StoreUnusable
from sglang_dualpath.store.lock import is_at

_HEADER = struct.Struct("<8sdd")
"""Magic, bandwidth in bytes a second (0: not limited), wall clock time at which the wire is next free."""

_ROW = struct.Struct("<QQqQ")
"""Process id, its start time, tokens queued, bytes read."""

_MAGIC = b"DPNIC01\0"
_ROWS = 256
_FILE_BYTES = _HEADER.size + _ROWS * _ROW.size


class NodeStorageNic:
    """The storage NIC of `node_id`. All processes that give the id share its queue and its emulated bandwidth.

    Raises StoreUnusable when a live process of the node gave another bandwidth, or the node has no row left.
    """

    def __init__(self, node_id: str, bandwidth_bytes_per_s: float | None, directory: Path = Path("/dev/shm")) -> None:
        self.node_id = node_id
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        name = hashlib.blake2b(node_id.encode(), digest_size=12).hexdigest()
        self._path = directory / f"sglang-dualpath-nic-{name}"
        self._thread_lock = threading.Lock()
        self._start_time = _start_time(os.getpid())
        while True:
            self._open()
            with self._locked():
                # The last process of the node may have removed the file since it was opened.
                if is_at(self._file, self._path):
                    self._row = self._join()
                    return
            self._let_go()

    def acquire(self, n_bytes: int) -> None:
        """Return when the emulated wire has let `n_bytes` through; at once without a bandwidth."""
        with self._locked():
            pid, start, tokens, total = self._read_row(self._row)
            self._write_row(self._row, (pid, start, tokens, total + n_bytes))
            if self.bandwidth_bytes_per_s is None:
                return
            magic, bandwidth, free_at = _HEADER.unpack_from(self._memory)
            done_at = max(free_at, time.time()) + n_bytes / self.bandwidth_bytes_per_s
            _HEADER.pack_into(self._memory, 0, magic, bandwidth, done_at)
        delay = done_at - time.time()
        if delay > 0:
            time.sleep(delay)

    def add_queued_tokens(self, delta: int) -> None:
        """Add to this process's share of the read queue; negative when a read has ended."""
        with self._locked():
            pid, start, tokens, total = self._read_row(self._row)
            self._write_row(self._row, (pid, start, tokens + delta, total))

    def node_queued_tokens(self) -> int:
        """Tokens that wait to be read on this node, over all its live processes."""
        with self._locked():
            return sum(row[2] for row in self._live_rows())

    @property
    def bytes_read(self) -> int:
        """Bytes this process has read over the NIC."""
        with self._locked():
            return self._read_row(self._row)[3]

    def node_bytes_read(self) -> int:
        """Bytes read on this node, over all its live processes."""
        with self._locked():
            return sum(row[3] for row in self._live_rows())

    def close(self) -> None:
        """Leave the node; the last process removes the file."""
        if self._memory.closed:
            return
        with self._locked():
            self._write_row(self._row, (0, 0, 0, 0))
            if not self._live_rows():
                self._path.unlink(missing_ok=True)
        self._let_go()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _FILE_BYTES)
        self._memory = mmap.mmap(self._file, _FILE_BYTES)

    def _let_go(self) -> None:
        self._memory.close()
        os.close(self._file)

    def _join(self) -> int:
        magic, bandwidth, _ = _HEADER.unpack_from(self._memory)
        wanted = self.bandwidth_bytes_per_s or 0.0
        others = self._live_rows() if magic == _MAGIC else []
        if others and bandwidth != wanted:
            raise StoreUnusable(
                f"--kv-store-read-bandwidth {wanted:.0f} differs from the {bandwidth:.0f} bytes a second that a running "
                f"engine of node {self.node_id!r} gave; give all engines of a node the same, or another --kv-node-id"
            )
        if not others:
            self._memory[:] = bytes(_FILE_BYTES)
            _HEADER.pack_into(self._memory, 0, _MAGIC, wanted, 0.0)
        for row in range(_ROWS):
            if not _is_alive(*self._read_row(row)[:2]):
                self._write_row(row, (os.getpid(), self._start_time, 0, 0))
                return row
        raise StoreUnusable(f"node {self.node_id!r} already has {_ROWS} engines; give this one another --kv-node-id")

    def _live_rows(self) -> list[tuple[int, int, int, int]]:
        rows = (self._read_row(row) for row in range(_ROWS))
        return [row for row in rows if row[0] and _is_alive(row[0], row[1])]

    def _read_row(self, row: int) -> tuple[int, int, int, int]:
        return _ROW.unpack_from(self._memory, _HEADER.size + row * _ROW.size)

    def _write_row(self, row: int, values: tuple[int, int, int, int]) -> None:
        _ROW.pack_into(self._memory, _HEADER.size + row * _ROW.size, *values)

    def _locked(self) -> "_FileLock":
        return _FileLock(self._file, self._thread_lock)


class _FileLock:
    """Both locks: threads of one process share an open file, and so its flock."""

    def __init__(self, file: int, thread_lock: threading.Lock) -> None:
        self._file = file
        self._thread_lock = thread_lock

    def __enter__(self) -> None:
        self._thread_lock.acquire()
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *exception: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._thread_lock.release()


def _start_time(pid: int) -> int:
    """The kernel's start time of a process, which tells it from a later one with its id; 0 when there is none."""
    try:
        return int(Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _is_alive(pid: int, start_time: int) -> bool:
    return pid != 0 and _start_time(pid) == start_time

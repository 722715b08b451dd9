"""A store in this host's shared memory, without an emulated NIC: the paper's Oracle, and a store for trying things out."""

import fcntl
import os
import shutil
from pathlib import Path

from sglang_dualpath.blocks.key import BlockNamespace
from sglang_dualpath.store.file import FileStore, StoreUnusable
from sglang_dualpath.store.lock import is_at

SHARED_MEMORY = Path("/dev/shm")


class MemoryStore(FileStore):
    """Blocks below /dev/shm, shared by the host's engines that name it; gone when the last of them closes it."""

    def __init__(self, name: str, namespace: BlockNamespace) -> None:
        self._place = SHARED_MEMORY / f"sglang-dualpath-{name}"
        self._lock_path = SHARED_MEMORY / f"sglang-dualpath-{name}.lock"
        try:
            self._lock = self._join()
        except OSError as error:
            raise StoreUnusable(f"--kv-store memory://{name}: {error.strerror}; use file:///DIR") from None
        super().__init__(self._place, namespace, unlimited=True)

    def _join(self) -> int:
        """Become a user: a shared lock on the lock file, which the last user may be removing at this very moment."""
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            self._clear_if_unused(lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if is_at(lock, self._lock_path):
                return lock
            os.close(lock)

    def _clear_if_unused(self, lock: int) -> None:
        """A store whose users have all died without closing it starts empty."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if is_at(lock, self._lock_path):
            shutil.rmtree(self._place, ignore_errors=True)

    def close(self) -> None:
        """Leave; the last user removes everything."""
        if self._lock < 0:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(self._place, ignore_errors=True)
            self._lock_path.unlink(missing_ok=True)  # while locked: who has opened it already sees it gone, and retries
        os.close(self._lock)
        self._lock = -1

"""A store in a directory: one file a block, written aside and renamed, with a checksum (local disk, NFS, a 3FS mount)."""

import contextlib
import errno
import itertools
import logging
import os
import socket
import struct
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import xxhash

from sglang_dualpath.blocks.key import KEY_BYTES, BlockKey, BlockNamespace
from sglang_dualpath.store.block_store import ReadOutcome, WriteOutcome

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<4sIQ32s16s")
"""Magic, format version, payload bytes, key, xxh3_128 of the payload."""

_MAGIC = b"DPKV"
_FORMAT_VERSION = 1
_TEMPORARY = f".writing-{zlib.crc32(socket.gethostname().encode()):08x}-"
"""A writer's file before its rename. The host is in the name: a process id says nothing about another host's writers."""


class StoreUnusable(ValueError):
    """The place that --kv-store names cannot hold blocks."""


class FileStore:
    """Blocks of one namespace below `root`. Raises StoreUnusable, naming --kv-store, where it cannot write."""

    def __init__(self, root: Path, namespace: BlockNamespace, *, unlimited: bool = False) -> None:
        self.unlimited = unlimited
        self._directory = root / namespace.hex
        self._block_bytes = namespace.geometry.full_block_bytes
        self._serial = itertools.count()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._directory, prefix=".probe-") as probe:
                probe.write(b"x")
        except OSError as error:
            raise StoreUnusable(
                f"--kv-store {root} cannot be written to: {error.strerror}; name another place"
            ) from None
        self._sweep_left_overs()

    def present_prefix(self, keys: Sequence[BlockKey]) -> int:
        """See `BlockStore.present_prefix`."""
        for n, key in enumerate(keys):
            if not self._path(key).exists():
                return n
        return len(keys)

    def read(self, key: BlockKey, into: memoryview) -> ReadOutcome:
        """See `BlockStore.read`."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return ReadOutcome.MISSING
        except OSError as error:
            logger.warning("cannot open block %s: %s", path, error)
            return ReadOutcome.FAILED
        try:
            outcome = self._read_checked(descriptor, key, into)
        except OSError as error:
            logger.warning("cannot read block %s: %s", path, error)
            return ReadOutcome.FAILED
        finally:
            os.close(descriptor)
        if outcome is not ReadOutcome.OK:
            logger.warning("block %s is %s; removing it", path, outcome.value)
            with contextlib.suppress(OSError):
                path.unlink()
        return outcome

    def _read_checked(self, descriptor: int, key: BlockKey, into: memoryview) -> ReadOutcome:
        header = bytearray(_HEADER.size)
        wanted = _HEADER.size + len(into)
        got = 0
        while got < wanted:
            target = [memoryview(header)[got:], into] if got < _HEADER.size else [into[got - _HEADER.size :]]
            n = os.preadv(descriptor, target, got)
            if n == 0:
                return ReadOutcome.TRUNCATED
            got += n
        magic, version, payload_bytes, stored_key, checksum = _HEADER.unpack(header)
        if magic != _MAGIC or version != _FORMAT_VERSION or stored_key != key or payload_bytes != len(into):
            return ReadOutcome.CORRUPT
        if xxhash.xxh3_128_digest(into) != checksum:
            return ReadOutcome.CORRUPT
        return ReadOutcome.OK

    def write(self, key: BlockKey, block: memoryview) -> WriteOutcome:
        """See `BlockStore.write`."""
        if len(block) != self._block_bytes:
            raise ValueError(f"a block of {len(block)} bytes in a store of {self._block_bytes}-byte blocks")
        path = self._path(key)
        temporary = path.parent / f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}-{next(self._serial)}"
        try:
            if path.exists():
                return WriteOutcome.PRESENT
            path.parent.mkdir(parents=True, exist_ok=True)
            header = _HEADER.pack(_MAGIC, _FORMAT_VERSION, len(block), key, xxhash.xxh3_128_digest(block))
            _write_whole(temporary, header, block)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            logger.warning("cannot write block %s: %s", path, error)
            return WriteOutcome.FULL if full else WriteOutcome.FAILED
        return WriteOutcome.WRITTEN

    def close(self) -> None:
        """See `BlockStore.close`."""

    def _path(self, key: BlockKey) -> Path:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        name = key.hex()
        return self._directory / name[:2] / name

    def _sweep_left_overs(self) -> None:
        """Remove what writers of this host left unfinished when they died."""
        for left_over in self._directory.glob(f"*/{_TEMPORARY}*"):
            pid = left_over.name.removeprefix(_TEMPORARY).split("-")[0]
            if pid.isdigit() and not Path("/proc", pid).exists():
                with contextlib.suppress(OSError):
                    left_over.unlink()


def _write_whole(path: Path, header: bytes, block: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        pieces = [memoryview(header), block]
        while pieces:
            n = os.writev(descriptor, pieces)
            while pieces and n >= len(pieces[0]):
                n -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][n:]
    finally:
        os.close(descriptor)

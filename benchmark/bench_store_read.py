"""How fast a file store reads: threads, ways to read, cold and warm page cache. Prints a table, in MB/s.

    python benchmark/bench_store_read.py --directory /mnt/kv

Ways: `store` is FileStore.read as the engines use it (one preadv, then the checksum), `preadv` the same read without the
checksum, `direct` the same with O_DIRECT, past the page cache. All read the same files, round after round, in an order
that changes from round to round, so that what else the machine does meets all of them alike; the table has the median
round and, in brackets, the slowest and the fastest. `cold` drops the files from the page cache before each measurement (with
O_DIRECT there is nothing to drop; it has no warm figure).
"""

import argparse
import itertools
import mmap
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.key import BlockKey, BlockNamespace
from sglang_dualpath.store.block_store import ReadOutcome, WriteOutcome
from sglang_dualpath.store.file import FileStore

SECTOR_BYTES = 4096
THREADS = (1, 2, 4, 8)


class Files:
    """A file store filled with random blocks, and one page-aligned destination for each block."""

    def __init__(self, root: Path, n_blocks: int, block_bytes: int) -> None:
        geometry = BlockGeometry(n_layers=1, token_bytes=block_bytes // 64)
        namespace = BlockNamespace("benchmark", "0", "none", geometry, "mha", 0, 1)
        self.block_bytes = geometry.full_block_bytes
        self.store = FileStore(root, namespace)
        self.keys: list[BlockKey] = [i.to_bytes(32, "big") for i in range(n_blocks)]
        content = np.random.default_rng(0)
        for key in self.keys:
            outcome = self.store.write(key, memoryview(content.bytes(self.block_bytes)))
            if outcome is not WriteOutcome.WRITTEN:
                raise SystemExit(f"--directory: a block could not be written ({outcome.value}); is there room?")
        self.paths = [next(root.glob(f"*/*/{key.hex()}")) for key in self.keys]
        room_bytes = -(-self.paths[0].stat().st_size // SECTOR_BYTES) * SECTOR_BYTES
        self.rooms = [memoryview(mmap.mmap(-1, room_bytes)) for _ in self.keys]
        for path in self.paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())  # what is not on the disk yet cannot be dropped from the page cache

    def drop_from_page_cache(self) -> None:
        """Make the next buffered read come from the disk."""
        for path in self.paths:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read_store(self, index: int) -> None:
        """As the engines read."""
        outcome = self.store.read(self.keys[index], self.rooms[index][: self.block_bytes])
        if outcome is not ReadOutcome.OK:
            raise RuntimeError(f"block {index}: {outcome.value}")

    def read_preadv(self, index: int) -> None:
        """Buffered, without a checksum."""
        self._read_whole(index, os.O_RDONLY)

    def read_direct(self, index: int) -> None:
        """Past the page cache, without a checksum."""
        self._read_whole(index, os.O_RDONLY | os.O_DIRECT)

    def _read_whole(self, index: int, flags: int) -> None:
        wanted = self.paths[index].stat().st_size
        descriptor = os.open(self.paths[index], flags)
        try:
            got = 0
            while got < wanted:
                n = os.preadv(descriptor, [self.rooms[index][got:]], got)
                if n == 0:
                    raise RuntimeError(f"block {index} ends at {got} of {wanted} bytes")
                got += n
        finally:
            os.close(descriptor)


def megabytes_per_s(files: Files, read: Callable[[int], None], n_threads: int) -> float:
    """All blocks once, in random order, over `n_threads`."""
    order = random.sample(range(len(files.keys)), len(files.keys))
    with ThreadPoolExecutor(n_threads) as threads:
        list(threads.map(lambda _: None, range(n_threads)))  # threads start before the clock does
        begin = time.perf_counter()
        list(threads.map(read, order))
        return len(order) * files.block_bytes / (time.perf_counter() - begin) / 1e6


def measure(files: Files, rounds: int) -> dict[tuple[str, str, int], list[float]]:
    """MB/s by cache state, way to read and number of threads: one figure a round."""
    ways = {"store": files.read_store, "preadv": files.read_preadv, "direct": files.read_direct}
    cases = [case for case in itertools.product(("cold", "warm"), ways, THREADS) if case[:2] != ("warm", "direct")]
    figures: dict[tuple[str, str, int], list[float]] = {case: [] for case in cases}
    for done in range(rounds):
        for cache, way, n_threads in random.sample(cases, len(cases)):
            if cache == "cold":
                files.drop_from_page_cache()
            else:
                for index in range(len(files.keys)):
                    files.read_preadv(index)
            figures[cache, way, n_threads].append(megabytes_per_s(files, ways[way], n_threads))
        print(f"round {done + 1} of {rounds}", file=sys.stderr)
    return figures


def print_table(figures: dict[tuple[str, str, int], list[float]]) -> None:
    """Rows are cache and way, columns are threads."""
    print("| cache | way | " + " | ".join(f"{n} thread{'s' * (n > 1)}" for n in THREADS) + " |")
    print("| --- | --- |" + " ---: |" * len(THREADS))
    for cache, way in dict.fromkeys(case[:2] for case in figures):
        rows = (figures[cache, way, n_threads] for n_threads in THREADS)
        cells = (f"{statistics.median(row):.0f} ({min(row):.0f}-{max(row):.0f})" for row in rows)
        print(f"| {cache} | {way} | " + " | ".join(cells) + " |")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(), help="on the file system to measure (default: here)")
    parser.add_argument("--blocks", type=int, default=128, help="default: 128")
    parser.add_argument("--block-bytes", type=int, default=1_474_560, help="default: a block of SmolLM2-135M, 1474560")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    if min(arguments.blocks, arguments.rounds) < 1 or arguments.block_bytes < 64:
        parser.error("--blocks and --rounds are at least 1, --block-bytes at least 64")
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=arguments.directory) as place:
        files = Files(Path(place), arguments.blocks, arguments.block_bytes)
        size = f"{arguments.blocks} blocks of {files.block_bytes} bytes, {os.cpu_count()} CPUs, median of"
        print(f"{size} {arguments.rounds} rounds (slowest-fastest), MB/s\n", flush=True)
        print_table(measure(files, arguments.rounds))


if __name__ == "__main__":
    main()

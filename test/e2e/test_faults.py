"""What goes wrong stays small: right tokens, a counter, a log line, nothing left behind."""

import contextlib
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from test.e2e.clients import Generated, generate, prompt
from test.e2e.servers import Stack, start_stack, state_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting the small file system for the store needs root")

STORE_SIZE = "48m"
N_NEW = 6


@pytest.fixture(scope="module")
def stack(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A prefill engine, two decode engines and a router, over a store on a small file system of its own."""
    directory = tmp_path_factory.mktemp("faults")
    store = directory / "store"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STORE_SIZE}", "tmpfs", str(store)], check=True)
    try:
        running = start_stack(checkpoints["tiny-dense"], directory, n_decode=2)
        yield running
        running.stop()
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


def block_files(stack: Stack) -> dict[str, Path]:
    """All blocks in the store by name."""
    return {path.name: path for path in stack.store.glob("*/??/*") if not path.name.startswith(".")}


def persisted(stack: Stack, ids: list[int]) -> tuple[Generated, list[Path]]:
    """The answer to a prompt nobody has seen, and the block files it left, in order: its prefixes are sent one by one."""
    files: list[Path] = []
    for end in [*range(64, len(ids), 64), len(ids)]:
        before = set(block_files(stack))
        answer = generate(stack.url, ids[:end], N_NEW if end == len(ids) else 1)
        stack.wait_quiet()
        files += [path for name, path in block_files(stack).items() if name not in before]
    return answer, files


def fallbacks(stack: Stack, reason: str) -> int:
    """How often a fallback has been counted, over all engines."""
    return sum(state["fallbacks"].get(reason, 0) for state in stack.states())


def logs(stack: Stack) -> str:
    """What all engines have printed."""
    return "".join(engine.log_text() for engine in (stack.prefill, *stack.decodes))


def flip_a_byte(path: Path) -> None:
    """Damage a block's content, not its length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    """Leave half of a block."""
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("damage", "reason"), [(flip_a_byte, "block_corrupt"), (cut_short, "block_truncated")], ids=["corrupt", "truncated"]
)
def test_bad_block_is_noticed_computed_and_written_anew(stack: Stack, side: str, damage, reason: str) -> None:
    """Block 3 of 6 is bad: the blocks before it are used, it is computed, and the next time all are hit again."""
    ids = prompt(random.Random(f"{side}-{reason}").randrange(10**6), 6 * 64 + 10)
    answer, files = persisted(stack, ids)
    assert len(files) == 6
    stack.flush()
    damage(files[3])
    counted = fallbacks(stack, reason)
    again = generate(stack.url, ids, N_NEW, side)
    assert again == Generated(answer.tokens, 3 * 64)
    assert fallbacks(stack, reason) > counted
    assert f"DualPath fallback {reason}" in logs(stack)
    stack.wait_quiet()
    stack.flush()
    assert generate(stack.url, ids, N_NEW, side) == Generated(answer.tokens, 6 * 64)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_deleted_block(stack: Stack, side: str) -> None:
    """A block that somebody has removed ends the hit before it."""
    ids = prompt(31 if side == "prefill" else 32, 5 * 64 + 3)
    answer, files = persisted(stack, ids)
    stack.flush()
    files[2].unlink()
    assert generate(stack.url, ids, N_NEW, side) == Generated(answer.tokens, 2 * 64)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_block_deleted_between_look_up_and_read(stack: Stack, side: str) -> None:
    """The look-up finds a block that the read does not: the directory entry is a dangling name by then."""
    ids = prompt(33 if side == "prefill" else 34, 5 * 64 + 3)
    answer, files = persisted(stack, ids)
    stack.flush()
    reason = "prefill_read_failed" if side == "prefill" else "decode_read_failed"
    counted = fallbacks(stack, reason)
    files[2].unlink()
    files[2].mkdir()
    try:
        assert generate(stack.url, ids, N_NEW, side) == Generated(answer.tokens, 2 * 64)
    finally:
        files[2].rmdir()
    assert fallbacks(stack, reason) > counted


def test_store_that_vanishes(stack: Stack) -> None:
    """The store's directory is gone: prompts are computed, and it is built up again."""
    ids = prompt(41, 300)
    answer, _ = persisted(stack, ids)
    stack.flush()
    for directory in stack.store.iterdir():
        shutil.rmtree(directory)
    assert generate(stack.url, ids, N_NEW) == Generated(answer.tokens, 0)
    stack.wait_quiet()
    stack.flush()
    assert generate(stack.url, ids, N_NEW) == Generated(answer.tokens, 256)


def test_full_disk(stack: Stack) -> None:
    """Nothing can be persisted: requests go on, and with space again so does persisting."""
    filler = stack.store / "filler"
    with filler.open("wb") as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(2**16))
            stream.flush()
    ids = prompt(51, 300)
    try:
        counted = fallbacks(stack, "store_full")
        answer, files = persisted(stack, ids)
        assert files == []
        assert fallbacks(stack, "store_full") > counted
        assert "DualPath fallback store_full" in logs(stack)
        stack.flush()
        assert generate(stack.url, ids, N_NEW) == Generated(answer.tokens, 0)
        stack.wait_quiet()
    finally:
        filler.unlink()
    generate(stack.url, ids, N_NEW)
    stack.wait_quiet()
    stack.flush()
    assert generate(stack.url, ids, N_NEW) == Generated(answer.tokens, 256)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_slow_read_delays_no_neighbour(stack: Stack, side: str) -> None:
    """One request's read hangs in the store; others arrive later and are answered, with hits, while it waits."""
    slow_ids, quick_ids = prompt(610 + len(side), 300), prompt(620 + len(side), 300)
    slow_answer, slow_files = persisted(stack, slow_ids)
    quick_answer = generate(stack.url, quick_ids, N_NEW)
    stack.wait_quiet()
    stack.flush()
    hanging = slow_files[1]
    hanging.unlink()
    os.mkfifo(hanging)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(generate, stack.url, slow_ids, N_NEW, side)
        try:
            for _ in range(3):
                stack.flush_if_idle()
                assert generate(stack.url, quick_ids, N_NEW, side) == Generated(quick_answer.tokens, 256)
            assert not slow.done()
        finally:
            # A writer that comes and goes lets the hanging reader see the end of the pipe.
            descriptor = os.open(hanging, os.O_WRONLY)
            hanging.unlink()
            os.close(descriptor)
        assert slow.result().tokens == slow_answer.tokens


@pytest.mark.parametrize("seed", range(3))
def test_aborts_at_random_moments_leave_nothing(stack: Stack, seed: int) -> None:
    """50 requests over shared prefixes, a third of them dropped by their clients somewhere on the way."""
    source = random.Random(seed)
    bases = [prompt(700 + i, 400) for i in range(5)]

    def one(index: int) -> str:
        ids = bases[index % 5] + prompt(800 + index, 40 + index)
        if index % 3:
            generate(stack.url, ids, 12, source.choice(["prefill", "decode", None]))
            return "answered"
        # The shortest ones end before one of the engines, or both, know of the request.
        timeout_s = source.choice([0.01, 0.03, source.uniform(0.05, 0.6)])
        sampling = {"temperature": 0, "max_new_tokens": 200}
        body = {"input_ids": ids, "stream": source.random() < 0.5, "sampling_params": sampling}
        with contextlib.suppress(requests.RequestException):
            requests.post(stack.url + "/generate", json=body, timeout=timeout_s)
        return "dropped"

    with ThreadPoolExecutor(10) as pool:
        ends = list(pool.map(one, range(50)))
    assert ends.count("answered") == 33
    assert ends.count("dropped") == 17
    stack.wait_quiet()


def test_killed_decode_engine(stack: Stack) -> None:
    """A decode engine dies under load: its clients get an error, all others their answer, and nothing leaks."""
    ids = prompt(81, 500)
    answer = generate(stack.url, ids, N_NEW)
    victim = stack.decodes[1]
    started = threading.Event()

    def one(index: int) -> int:
        body = {
            "input_ids": ids + prompt(900 + index, 30),
            "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True},
        }
        started.set()
        return requests.post(stack.url + "/generate", json=body, timeout=150).status_code

    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(one, index) for index in range(24)]
        started.wait()
        victim.kill()
        codes = [future.result() for future in running]
    assert set(codes) <= {200, 502, 503}
    assert codes.count(200) >= 1
    stack.flush_if_idle()
    for _ in range(4):
        assert generate(stack.url, ids, N_NEW).tokens == answer.tokens
    stack.wait_quiet()
    assert state_of(stack.prefill)["buffer"]["leases"] == 0

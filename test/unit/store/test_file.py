"""The file store: a block is complete or absent, whatever happens to its file, its disk or its writer."""

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_dualpath.blocks.geometry import BlockGeometry
from sglang_dualpath.blocks.key import BlockKey
from sglang_dualpath.store.block_store import ReadOutcome, WriteOutcome
from sglang_dualpath.store.file import FileStore, StoreUnusable

from test.unit.engine_parts import namespace
from test.unit.store.processes import other_process

GEOMETRY = BlockGeometry(n_layers=2, token_bytes=5)
NAMESPACE = namespace(GEOMETRY)
BYTES = GEOMETRY.full_block_bytes


def key(n: int) -> BlockKey:
    """Some key."""
    return bytes([n]) * 32


def content(n: int) -> memoryview:
    """Some block."""
    return memoryview(bytes((n + i) % 251 for i in range(BYTES)))


def read(store: FileStore, name: BlockKey) -> tuple[ReadOutcome, bytes]:
    """What a read of a block gives."""
    into = bytearray(BYTES)
    return store.read(name, memoryview(into)), bytes(into)


def file_of(root: Path, name: BlockKey) -> Path:
    """The file of a block."""
    (path,) = root.rglob(name.hex())
    return path


def left_overs(root: Path) -> list[Path]:
    """Files that are no blocks."""
    return [path for path in root.rglob("*") if path.is_file() and len(path.name) != 64]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """An empty store."""
    return FileStore(tmp_path, NAMESPACE)


def test_what_was_written_is_read(store: FileStore, tmp_path: Path) -> None:
    assert store.write(key(1), content(1)) is WriteOutcome.WRITTEN
    assert read(store, key(1)) == (ReadOutcome.OK, bytes(content(1)))
    assert left_overs(tmp_path) == []


def test_another_engine_of_the_namespace_reads_it_too(store: FileStore, tmp_path: Path) -> None:
    store.write(key(1), content(1))
    assert read(FileStore(tmp_path, NAMESPACE), key(1)) == (ReadOutcome.OK, bytes(content(1)))


def test_an_engine_of_another_namespace_does_not(store: FileStore, tmp_path: Path) -> None:
    store.write(key(1), content(1))
    stranger = FileStore(tmp_path, replace(NAMESPACE, weights_revision="other"))
    assert stranger.present_prefix([key(1)]) == 0
    assert read(stranger, key(1))[0] is ReadOutcome.MISSING


def test_a_block_that_was_never_written_is_missing(store: FileStore) -> None:
    assert read(store, key(1))[0] is ReadOutcome.MISSING


def test_the_first_write_of_a_key_stands(store: FileStore) -> None:
    store.write(key(1), content(1))
    assert store.write(key(1), content(2)) is WriteOutcome.PRESENT
    assert read(store, key(1))[1] == bytes(content(1))


@given(present=st.sets(st.integers(0, 7)), asked=st.integers(0, 8))
@settings(max_examples=40)
def test_the_present_prefix_ends_at_the_first_gap(
    present: set[int], asked: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"), NAMESPACE)
    for n in present:
        store.write(key(n), content(n))
    expected = 0
    while expected < asked and expected in present:
        expected += 1
    assert store.present_prefix([key(n) for n in range(asked)]) == expected


# ---- bad files


@given(data=st.data())
@settings(max_examples=100)
def test_a_file_with_any_byte_changed_is_never_taken_for_the_block(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = FileStore(root, NAMESPACE)
    store.write(key(1), content(1))
    damaged = bytearray(file_of(root, key(1)).read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    file_of(root, key(1)).write_bytes(damaged)
    assert read(store, key(1))[0] is ReadOutcome.CORRUPT


@given(data=st.data())
@settings(max_examples=50)
def test_a_file_cut_short_anywhere_is_truncated(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("store")
    store = FileStore(root, NAMESPACE)
    store.write(key(1), content(1))
    path = file_of(root, key(1))
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    assert read(store, key(1))[0] is ReadOutcome.TRUNCATED


def test_another_blocks_file_under_this_name_is_corrupt(store: FileStore, tmp_path: Path) -> None:
    store.write(key(1), content(1))
    store.write(key(2), content(2))
    shutil.copy(file_of(tmp_path, key(2)), file_of(tmp_path, key(1)))
    assert read(store, key(1))[0] is ReadOutcome.CORRUPT
    assert read(store, key(2))[0] is ReadOutcome.OK


@pytest.mark.parametrize("how", ["corrupt", "truncated"])
def test_a_bad_block_is_removed_and_written_anew(store: FileStore, tmp_path: Path, how: str) -> None:
    store.write(key(1), content(1))
    path = file_of(tmp_path, key(1))
    path.write_bytes(b"" if how == "truncated" else b"x" * path.stat().st_size)
    assert read(store, key(1))[0].value == how
    assert store.present_prefix([key(1)]) == 0
    assert store.write(key(1), content(1)) is WriteOutcome.WRITTEN
    assert read(store, key(1)) == (ReadOutcome.OK, bytes(content(1)))


def test_a_directory_in_a_blocks_place_is_a_failed_read(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / NAMESPACE.hex / key(1).hex()[:2] / key(1).hex()).mkdir(parents=True)
    assert read(store, key(1))[0] is ReadOutcome.FAILED


def test_reads_that_come_in_pieces_are_put_together(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(key(1), content(1))
    whole = os.preadv

    def in_pieces(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return whole(descriptor, [memoryview(buffers[0])[:7]], offset)

    monkeypatch.setattr(os, "preadv", in_pieces)
    assert read(store, key(1)) == (ReadOutcome.OK, bytes(content(1)))


def test_an_error_while_reading_is_a_failed_read_and_the_block_stays(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    store.write(key(1), content(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        assert read(store, key(1))[0] is ReadOutcome.FAILED
    assert read(store, key(1))[0] is ReadOutcome.OK


# ---- writes that cannot be


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ENOSPC, WriteOutcome.FULL),
        (errno.EDQUOT, WriteOutcome.FULL),
        (errno.EIO, WriteOutcome.FAILED),
        (errno.EROFS, WriteOutcome.FAILED),
    ],
)
def test_a_disk_that_takes_only_the_beginning_leaves_nothing(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, outcome: WriteOutcome
) -> None:
    whole, calls = os.writev, []

    def fails_on_second(descriptor: int, pieces: Sequence[memoryview]) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(number, os.strerror(number))
        return whole(descriptor, [pieces[0], pieces[1][:10]])

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", fails_on_second)
        assert store.write(key(1), content(1)) is outcome
    assert len(calls) == 2
    assert left_overs(tmp_path) == []
    assert read(store, key(1))[0] is ReadOutcome.MISSING
    assert store.write(key(1), content(1)) is WriteOutcome.WRITTEN


def test_writes_that_go_in_pieces_are_put_together(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, pieces: whole(descriptor, [pieces[0][:11]]))
    assert store.write(key(1), content(1)) is WriteOutcome.WRITTEN
    assert read(store, key(1)) == (ReadOutcome.OK, bytes(content(1)))


def test_a_directory_that_vanished_is_an_empty_store(store: FileStore, tmp_path: Path) -> None:
    store.write(key(1), content(1))
    shutil.rmtree(tmp_path / NAMESPACE.hex)
    assert store.present_prefix([key(1)]) == 0
    assert read(store, key(1))[0] is ReadOutcome.MISSING
    assert store.write(key(1), content(1)) is WriteOutcome.WRITTEN
    assert read(store, key(1))[0] is ReadOutcome.OK


def test_a_place_that_has_become_a_file_fails_every_write_and_raises_nothing(store: FileStore, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / NAMESPACE.hex)
    (tmp_path / NAMESPACE.hex).write_text("not a directory")
    assert store.write(key(1), content(1)) is WriteOutcome.FAILED
    assert read(store, key(1))[0] is ReadOutcome.FAILED


@pytest.mark.parametrize("n_bytes", [0, BYTES - 1, BYTES + 1])
def test_a_block_of_another_size_is_a_mistake(store: FileStore, n_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"{n_bytes} bytes"):
        store.write(key(1), memoryview(bytes(n_bytes)))


def test_a_key_of_another_size_is_a_mistake(store: FileStore) -> None:
    with pytest.raises(ValueError, match="key of 3 bytes"):
        store.read(b"abc", memoryview(bytearray(BYTES)))


# ---- opening


def test_a_place_that_cannot_be_a_directory_is_refused_by_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="--kv-store"):
        FileStore(tmp_path / "file" / "below", NAMESPACE)


HALF_WRITER = """
import os, sys
from pathlib import Path
from sglang_dualpath.store import file
from test.unit.store.test_file import NAMESPACE, content, key
def stop(temporary, final):
    print(temporary, flush=True)
    sys.stdin.readline()
os.replace = stop
file.FileStore(Path(sys.argv[1]), NAMESPACE).write(key(1), content(1))
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_engine_and_a_live_writers_is_not(tmp_path: Path) -> None:
    with other_process(HALF_WRITER, str(tmp_path)) as writer:
        temporary = Path(writer.hears())
        store = FileStore(tmp_path, NAMESPACE)
        assert temporary.exists()
        assert store.present_prefix([key(1)]) == 0
        writer.kill()
    FileStore(tmp_path, NAMESPACE)
    assert not temporary.exists()
    assert left_overs(tmp_path) == []


def test_another_hosts_writers_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileStore(tmp_path, NAMESPACE)
    foreign = tmp_path / NAMESPACE.hex / "ab" / ".writing-deadbeef-999999999-1-0"
    foreign.parent.mkdir()
    foreign.write_bytes(b"half a block")
    FileStore(tmp_path, NAMESPACE)
    assert foreign.exists()


def test_writers_and_readers_of_one_block_never_see_a_half_of_it(tmp_path: Path) -> None:
    names = [key(n) for n in range(4)]

    def work(n: int) -> set[ReadOutcome]:
        store = FileStore(tmp_path, NAMESPACE)
        seen = set()
        for turn in range(60):
            number = (turn + n) % len(names)
            if n % 2:
                with contextlib.suppress(FileNotFoundError):
                    store._path(names[number]).unlink()
                assert store.write(names[number], content(number)) in (WriteOutcome.WRITTEN, WriteOutcome.PRESENT)
            else:
                outcome, found = read(store, names[number])
                seen.add(outcome)
                assert outcome is not ReadOutcome.OK or found == bytes(content(number))
        return seen

    with ThreadPoolExecutor(4) as threads:
        outcomes = set().union(*threads.map(work, range(4)))
    assert outcomes <= {ReadOutcome.OK, ReadOutcome.MISSING}
    assert left_overs(tmp_path) == []

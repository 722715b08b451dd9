"""`--kv-store URL`: two kinds, and one sentence for everything else."""

from pathlib import Path

import pytest
from sglang_dualpath.store.file import FileStore, StoreUnusable
from sglang_dualpath.store.memory import MemoryStore
from sglang_dualpath.store.url import check_store, open_store

from test.unit.store.test_file import NAMESPACE, content, key


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in the place of /dev/shm."""
    monkeypatch.setattr("sglang_dualpath.store.memory.SHARED_MEMORY", tmp_path)


def test_a_file_url_is_a_directory_with_blanks_and_all(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20place", NAMESPACE)
    assert isinstance(store, FileStore)
    assert not store.unlimited
    store.write(key(1), content(1))
    assert [path.name for path in (tmp_path / "a place").rglob("*") if path.is_file()] == [key(1).hex()]


def test_a_memory_url_is_shared_memory_by_name(tmp_path: Path) -> None:
    store = open_store("memory://oracle", NAMESPACE)
    assert isinstance(store, MemoryStore)
    assert (tmp_path / "sglang-dualpath-oracle").is_dir()
    store.close()


@pytest.mark.parametrize(
    "url", ["", "/a", "file://host/a", "file:a", "s3://b", "memory:x", "memory://a/b", "memory://" + "x" * 65]
)
def test_anything_else_is_refused_by_the_flag(url: str) -> None:
    with pytest.raises(StoreUnusable, match="--kv-store"):
        open_store(url, NAMESPACE)


def test_the_early_check_leaves_a_usable_place_as_it_was(tmp_path: Path) -> None:
    check_store(f"file://{tmp_path}/new")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_early_check_refuses_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match=r"--kv-store .* cannot be written to"):
        check_store(f"file://{tmp_path}/file/below")

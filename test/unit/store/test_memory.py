"""The memory store: shared by who names it, gone with its last user, empty after users that died."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_dualpath.store.block_store import ReadOutcome, WriteOutcome
from sglang_dualpath.store.file import StoreUnusable
from sglang_dualpath.store.memory import MemoryStore

from test.unit.store.processes import other_process
from test.unit.store.test_file import NAMESPACE, content, key, read

USER = """
import sys
from pathlib import Path
from sglang_dualpath.store import memory
from test.unit.store.test_file import NAMESPACE, content, key
memory.SHARED_MEMORY = Path(sys.argv[2])
store = memory.MemoryStore(sys.argv[1], NAMESPACE)
store.write(key(7), content(7))
print("written", flush=True)
sys.stdin.readline()
store.close()
"""


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in the place of /dev/shm."""
    monkeypatch.setattr("sglang_dualpath.store.memory.SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def name() -> Iterator[str]:
    """A name nobody has used."""
    return uuid.uuid4().hex


def test_its_reads_are_exempt_from_the_emulated_nic(name: str) -> None:
    store = MemoryStore(name, NAMESPACE)
    assert store.unlimited
    store.close()


def test_who_names_it_shares_it(name: str) -> None:
    one, other = MemoryStore(name, NAMESPACE), MemoryStore(name, NAMESPACE)
    assert one.write(key(1), content(1)) is WriteOutcome.WRITTEN
    assert read(other, key(1)) == (ReadOutcome.OK, bytes(content(1)))
    one.close()
    other.close()


def test_another_name_is_another_store(name: str) -> None:
    one, other = MemoryStore(name, NAMESPACE), MemoryStore(name + "x", NAMESPACE)
    one.write(key(1), content(1))
    assert other.present_prefix([key(1)]) == 0
    one.close()
    other.close()


def test_it_outlives_all_but_its_last_user(name: str, shared_memory: Path) -> None:
    one, other = MemoryStore(name, NAMESPACE), MemoryStore(name, NAMESPACE)
    one.write(key(1), content(1))
    one.close()
    assert read(other, key(1))[0] is ReadOutcome.OK
    other.close()
    assert list(shared_memory.iterdir()) == []


def test_closing_twice_leaves_once(name: str) -> None:
    one, other = MemoryStore(name, NAMESPACE), MemoryStore(name, NAMESPACE)
    one.write(key(1), content(1))
    one.close()
    one.close()
    assert other.present_prefix([key(1)]) == 1
    other.close()


def test_a_process_that_leaves_takes_nothing_from_the_others(name: str, shared_memory: Path) -> None:
    with other_process(USER, name, str(shared_memory)) as user:
        assert user.hears() == "written"
        store = MemoryStore(name, NAMESPACE)
        assert read(store, key(7)) == (ReadOutcome.OK, bytes(content(7)))
        user.say("leave")
        assert user.finish() == 0
    assert read(store, key(7))[0] is ReadOutcome.OK
    store.close()
    assert list(shared_memory.iterdir()) == []


def test_after_users_that_were_killed_it_starts_empty(name: str, shared_memory: Path) -> None:
    with other_process(USER, name, str(shared_memory)) as user:
        assert user.hears() == "written"
        user.kill()
    store = MemoryStore(name, NAMESPACE)
    assert store.present_prefix([key(7)]) == 0
    store.close()


def test_a_user_that_joins_while_the_last_one_leaves_has_a_lock_that_counts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = MemoryStore(name, NAMESPACE)
    original = MemoryStore._clear_if_unused

    def leave_meanwhile(self: MemoryStore, lock: int) -> None:
        leaving.close()
        original(self, lock)

    monkeypatch.setattr(MemoryStore, "_clear_if_unused", leave_meanwhile)
    joined = MemoryStore(name, NAMESPACE)
    joined.write(key(1), content(1))
    third = MemoryStore(name, NAMESPACE)
    assert third.present_prefix([key(1)]) == 1
    joined.close()
    third.close()


def test_without_shared_memory_the_remedy_is_a_directory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_dualpath.store.memory.SHARED_MEMORY", Path("/nowhere/at/all"))
    with pytest.raises(StoreUnusable, match=f"--kv-store memory://{name}.*file:///DIR"):
        MemoryStore(name, NAMESPACE)

"""From `--kv-store URL` to a store."""

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sglang_dualpath.blocks.key import BlockNamespace
from sglang_dualpath.config import MEMORY_STORE_NAME
from sglang_dualpath.store.block_store import BlockStore
from sglang_dualpath.store.file import FileStore, StoreUnusable
from sglang_dualpath.store.memory import MemoryStore


def open_store(url: str, namespace: BlockNamespace) -> BlockStore:
    """Open `file:///DIR` or `memory://NAME`. Raises StoreUnusable, naming --kv-store and the remedy."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileStore(Path(unquote(parts.path)), namespace)
    if parts.scheme == "memory":
        name = parts.netloc or "default"
        if parts.path or not MEMORY_STORE_NAME.fullmatch(name):
            raise StoreUnusable(
                f"--kv-store {url!r}: a memory store's name is 1 to 64 of ASCII letters, digits, '.', '_', '-'"
            )
        return MemoryStore(name, namespace)
    raise StoreUnusable(f"--kv-store {url!r} is neither file:///DIR nor memory://NAME")


def check_store(url: str) -> None:
    """Refuse early what `open_store` would refuse later: a directory that cannot be written to."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return
    root = Path(unquote(parts.path))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-"):
            pass
    except OSError as error:
        raise StoreUnusable(f"--kv-store {url} cannot be written to: {error.strerror}; name another place") from None

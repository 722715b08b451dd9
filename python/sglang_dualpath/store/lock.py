"""Lock files that their last user removes."""

import os
from pathlib import Path


def is_at(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file. Once its last user has removed it, a lock on it guards nothing."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

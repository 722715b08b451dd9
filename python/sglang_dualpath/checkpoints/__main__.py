"""Make a checkpoint: `python -m sglang_dualpath.checkpoints NAME DIRECTORY`."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from sglang_dualpath.checkpoints import tiny
from sglang_dualpath.checkpoints.smollm2 import smollm2

MAKERS: dict[str, Callable[[Path, str], None]] = {
    "tiny-dense": tiny.dense,
    "tiny-moe": tiny.moe,
    "tiny-mla": tiny.mla,
    "smollm2": smollm2,
}


def make(name: str, directory: Path, dtype: str) -> bool:
    """Make a checkpoint in `directory`, complete or not at all; False when it is there already."""
    if (directory / "config.json").exists():
        return False
    aside = directory.with_name(f"{directory.name}.making-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        MAKERS[name](aside, dtype)
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sglang_dualpath.checkpoints", description=__doc__)
    parser.add_argument("name", choices=sorted(MAKERS), help="tiny-*: random weights; smollm2: the real 135M model")
    parser.add_argument("directory", type=Path, help="where the checkpoint goes; left alone if it is there already")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the saved weights")
    arguments = parser.parse_args()
    print(f"making {arguments.name} in {arguments.directory} ...", file=sys.stderr, flush=True)
    made = make(arguments.name, arguments.directory, arguments.dtype)
    print("done" if made else "it is there already", file=sys.stderr)


if __name__ == "__main__":
    main()

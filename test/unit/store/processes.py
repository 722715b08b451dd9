"""Other processes in tests: a few lines of Python on the other end of two pipes, ended by their own id."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OtherProcess:
    """Runs `program`; the two sides talk in lines."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hears(self) -> str:
        """The next line it says. Fails when it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the other process ended with {self._process.wait()}"
        return line.strip()

    def say(self, line: str) -> None:
        """Tell it to go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        return self._process.wait(timeout=60)


@contextmanager
def other_process(program: str, *arguments: str) -> Iterator[OtherProcess]:
    """A process that is gone afterwards."""
    other = OtherProcess(program, *arguments)
    try:
        yield other
    finally:
        other.kill()

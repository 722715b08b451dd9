"""Telling a person what goes on: a live line on a terminal, plain lines in a log."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S = 15.0


class Steps:
    """The steps of one column of the demo. Use as a context."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live: Progress | None = None
        self._task: TaskID | None = None
        self._said = ""
        self._said_at_s = 0.0
        if console.is_terminal:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
            )

    def __enter__(self) -> "Steps":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A step without a count; saying the same again shows only that it still goes on."""
        if self._live is not None:
            if text != self._said:
                self._finish_task()
                self._task = self._live.add_task(f"{self._title}: {text}", total=None)
        elif text != self._said or time.monotonic() - self._said_at_s > PLAIN_INTERVAL_S:
            self._print(text)
        self._said = text

    def count(self, text: str, total: int) -> Callable[[Any], None]:
        """A step of `total` parts; call the result once a part."""
        self._said = text
        done = 0
        if self._live is not None:
            self._finish_task()
            self._task = self._live.add_task(f"{self._title}: {text}", total=total)

        def advance(_: Any) -> None:
            nonlocal done
            done += 1
            if self._live is not None and self._task is not None:
                self._live.advance(self._task)
            elif done == total or time.monotonic() - self._said_at_s > PLAIN_INTERVAL_S:
                self._print(f"{text}: {done} of {total}")

        return advance

    def _print(self, text: str) -> None:
        self._said_at_s = time.monotonic()
        self._console.print(f"{time.strftime('%H:%M:%S')} {self._title}: {text}", highlight=False)

    def _finish_task(self) -> None:
        if self._live is not None and self._task is not None:
            task = self._live.tasks[self._task]
            self._live.update(self._task, total=task.total or 1, completed=task.total or 1)

"""The scheduling core as a front process sees it: behind a Unix socket."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

from sglang_dualpath.router.front.placement import Ended, Finished, NotPlaced, Placement
from sglang_dualpath.router.fronts import link
from sglang_dualpath.router.scheduling.request import Request


class RemoteCore:
    """See `front.placement.Core`. `closed` is set when the core is gone: the front ends then."""

    def __init__(self) -> None:
        self._refs = itertools.count()
        self._waiting: dict[int, asyncio.Future[Placement]] = {}
        self._callbacks: list[Callable[[str], None]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()

    async def connect(self, path: Path) -> None:
        """Reach the core. Raises OSError."""
        reader, self._writer = await asyncio.open_unix_connection(path)
        self._task = asyncio.create_task(self._listen(reader))

    async def close(self) -> None:
        """Let go of the core."""
        if self._task is not None:
            self._task.cancel()
        if self._writer is not None:
            self._writer.close()

    async def place(self, request: Request) -> Placement:
        """See `Core.place`."""
        if self.closed.is_set():
            raise NotPlaced("no_engine", "the router is stopping")
        ref = next(self._refs)
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._waiting[ref] = future
        self._send(
            link.Place(
                ref=ref,
                prompt_tokens=request.prompt_tokens,
                arrived_s=request.arrived_s,
                keys=request.keys,
                output_tokens=request.output_tokens,
                priority=request.priority,
                read_side=request.read_side,
                passed_over=tuple(request.passed_over),
            )
        )
        try:
            return await future
        except asyncio.CancelledError:
            self._send(link.GiveUp(ref=ref))
            raise
        finally:
            del self._waiting[ref]

    def prefill_done(self, ticket: str) -> None:
        """See `Core.prefill_done`."""
        self._send(link.PrefillDone(ticket=ticket))

    def end(self, ended: Ended) -> None:
        """See `Core.end`."""
        self._send(link.End(ended=ended))

    def note(self, finished: Finished) -> None:
        """See `Core.note`."""
        self._send(link.Note(finished=finished))

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """See `Core.on_lost`."""
        self._callbacks.append(callback)

    def _send(self, message: link.ToCore) -> None:
        if self._writer is not None and not self.closed.is_set():
            link.send(self._writer, message)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (data := await link.receive(reader)) is not None:
            self._take(link.to_front.decode(data))
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotPlaced("no_engine", "the router is stopping"))

    def _take(self, message: link.ToFront) -> None:
        if isinstance(message, link.Lost):
            for callback in self._callbacks:
                callback(message.url)
            return
        future = self._waiting.get(message.ref)
        if future is None or future.done():
            # Placed in the moment its client left: the core is told that it is over.
            if isinstance(message, link.Placed):
                self.end(Ended(ticket=message.placement.ticket, outcome="client_gone"))
        elif isinstance(message, link.Placed):
            future.set_result(message.placement)
        else:
            future.set_exception(NotPlaced(message.outcome, message.message))

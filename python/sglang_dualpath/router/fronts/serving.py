"""The core's end of the links to front processes."""

import asyncio
import logging
from pathlib import Path
from typing import Literal, cast

from sglang_dualpath.router.core.core import SchedulingCore
from sglang_dualpath.router.front.placement import Ended, NotPlaced
from sglang_dualpath.router.fronts import link
from sglang_dualpath.router.scheduling.request import Request

logger = logging.getLogger(__name__)


class CoreServer:
    """Serves a core on a Unix socket; what a front that dies had placed is ended for it."""

    def __init__(self, core: SchedulingCore) -> None:
        self._core = core
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        core.on_lost(self._on_lost)

    async def start(self, path: Path) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def close(self) -> None:
        """Stop listening, and close all links."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    def _on_lost(self, url: str) -> None:
        for writer in self._writers:
            link.send(writer, link.Lost(url=url))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = _Link(self._core, writer)
        self._writers.add(writer)
        try:
            while (data := await link.receive(reader)) is not None:
                served.take(link.to_core.decode(data))
        except ValueError:
            logger.exception("a front process sent what it should not")
        finally:
            self._writers.discard(writer)
            served.close()
            writer.close()


class _Link:
    """One front process, as the core sees it."""

    def __init__(self, core: SchedulingCore, writer: asyncio.StreamWriter) -> None:
        self._core = core
        self._writer = writer
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._placed: set[str] = set()

    def take(self, message: link.ToCore) -> None:
        """One message of the front's."""
        if isinstance(message, link.Place):
            task = asyncio.create_task(self._place(message))
            self._waiting[message.ref] = task
            task.add_done_callback(lambda _: self._waiting.pop(message.ref, None))
        elif isinstance(message, link.GiveUp):
            if (waiting := self._waiting.get(message.ref)) is not None:
                waiting.cancel()
        elif isinstance(message, link.PrefillDone):
            self._core.prefill_done(message.ticket)
        elif isinstance(message, link.End):
            self._placed.discard(message.ended.ticket)
            self._core.end(message.ended)
        else:
            self._core.note(message.finished)

    def close(self) -> None:
        """The front is gone."""
        for task in list(self._waiting.values()):
            task.cancel()
        for ticket in self._placed:
            self._core.end(Ended(ticket=ticket, outcome="client_gone"))

    async def _place(self, message: link.Place) -> None:
        request = Request(
            request_id=str(message.ref),
            prompt_tokens=message.prompt_tokens,
            arrived_s=message.arrived_s,
            keys=message.keys,
            output_tokens=message.output_tokens,
            priority=message.priority,
            read_side=cast('Literal["prefill", "decode"] | None', message.read_side),
            passed_over=frozenset(message.passed_over),
        )
        try:
            placement = await self._core.place(request)
        except NotPlaced as error:
            link.send(self._writer, link.Refused(ref=message.ref, outcome=error.outcome, message=str(error)))
            return
        self._placed.add(placement.ticket)
        link.send(self._writer, link.Placed(ref=message.ref, placement=placement))

"""Stub engines in aiohttp: answer at once, streamed or whole, whatever role they are asked in.

    python -m benchmark.router.stub --ports 31000 31001 [--chunks 4] [--quick-ack]

`--quick-ack` acknowledges what comes in at once (TCP_QUICKACK): with it, a router that writes a request in several small pieces
without TCP_NODELAY no longer waits for a delayed acknowledgement.
"""

import argparse
import asyncio
import json
import signal
import socket

import uvloop
from aiohttp import web

GENERATING_PATHS = ("/generate", "/v1/chat/completions", "/v1/completions")


class Stub:
    """One process that serves as any number of engines."""

    def __init__(self, chunks: int, quick_ack: bool, chunk_s: float) -> None:
        self._chunk_s = chunk_s
        self._quick_ack = quick_ack
        texts = [json.dumps({"text": "x " * (i + 1), "meta_info": {}}) for i in range(chunks)]
        self._events = [f"data: {text}\n\n".encode() for text in texts]
        self._events.append(b"data: [DONE]\n\n")
        self._whole = json.dumps({"text": "x " * chunks, "meta_info": {"completion_tokens": chunks}}).encode()

    def application(self) -> web.Application:
        """All that routers ask of engines."""
        app = web.Application(client_max_size=2**30)
        for path in GENERATING_PATHS:
            app.router.add_post(path, self._generate)
        for path in ("/health", "/health_generate", "/abort_request", "/flush_cache"):
            app.router.add_route("*", path, self._ok)
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/models", "/get_load"):
            app.router.add_get(path, self._info)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self._quick_ack and request.transport is not None:
            request.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = await request.read()
        # Near either end, whoever has put fields in front or behind.
        if b'"stream":true' not in (data[:4096] + data[-4096:]).replace(b" ", b""):
            return web.Response(body=self._whole, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self._events:
            await response.write(event)
            if self._chunk_s:
                await asyncio.sleep(self._chunk_s)
        await response.write_eof()
        return response

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _info(self, request: web.Request) -> web.Response:
        model = {"id": "stub", "object": "model"}
        return web.json_response(
            {
                "object": "list",
                "data": [model],
                "model_path": "stub",
                "served_model_name": "stub",
                "internal_states": [{}],
            }
        )


async def serve(ports: list[int], stub: Stub) -> None:
    """Until SIGTERM."""
    runner = web.AppRunner(stub.application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    for port in ports:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--chunks", type=int, default=4, help="events of a streamed answer (default %(default)s)")
    parser.add_argument("--chunk-seconds", type=float, default=0.0, help="pause after each (default none)")
    parser.add_argument("--quick-ack", action="store_true")
    arguments = parser.parse_args()
    stub = Stub(arguments.chunks, arguments.quick_ack, arguments.chunk_seconds)
    uvloop.run(serve(arguments.ports, stub))


if __name__ == "__main__":
    main()

"""The answer that does not end: server-sent events with what changed, for as long as one looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from registry.manifest import JsonObject
from serving.admin.console.hub import ConsoleHub

EVENTS_TYPE: Final = "text/event-stream"
_HEADERS: Final = [
    (b"content-type", EVENTS_TYPE.encode("ascii")),
    (b"cache-control", b"no-store"),
    # Proxies that gather answers would show a console that stands still.
    (b"x-accel-buffering", b"no"),
]


class ConsoleStream(Response):
    """Sends ``hello`` once, then a ``look`` a second, and ends when the hub or ``limit`` does.

    The reader is counted in before the first byte, so that a refusal still is an error answer.
    ``limit``: end after so many looks; 0 for never.
    """

    def __init__(self, hub: ConsoleHub, hello: JsonObject, limit: int) -> None:
        self.status_code = 200
        self.background = None
        self._hub = hub
        self._hello = hello
        self._limit = limit

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until the hub ends or the client leaves; raise QueueFull or NotReady before that."""
        self._hub.enter()
        try:
            sending = asyncio.create_task(self._send(send), name="console stream")
            leaving = asyncio.create_task(_left(receive), name="console reader")
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                if sending.cancel():
                    await asyncio.wait({sending})
                elif not sending.cancelled() and (error := sending.exception()):
                    raise error
        finally:
            self._hub.leave()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await _send_event(send, b"hello", orjson.dumps(self._hello))
        async with aclosing(self._messages()) as messages:
            async for message in messages:
                await _send_event(send, b"look", message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        sent = 0
        async with aclosing(self._hub.messages()) as messages:
            async for message in messages:
                yield message
                sent += 1
                if sent == self._limit:
                    return


async def _send_event(send: Send, kind: bytes, data: bytes) -> None:
    body = b"event: " + kind + b"\ndata: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

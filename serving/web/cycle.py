"""A request that the application answers: uvicorn's cycle, closing only when it may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving.errors import WorkerLost, message_of, status_of
from serving.web.errors import JSON_TYPE, REQUEST_ID, Headers, error_body, request_id_of


class Flow(FlowControl):
    """Flow control in which a request that waits its turn keeps reading paused.

    Otherwise the request before it, listening for a disconnect, would take in without bound what
    the client sends ahead.
    """

    is_held = False

    def resume_reading(self) -> None:
        """Read on, unless a request waits its turn."""
        if not self.is_held:
            super().resume_reading()


class AnswerTransport:
    """What a cycle writes to: its connection, which knows the order and when to linger."""

    def __init__(
        self,
        transport: asyncio.Transport,
        write: Callable[[bytes], None],
        close: Callable[[], None],
    ) -> None:
        self.write = write
        self.is_closing = transport.is_closing
        self.close = close


class Cycle(RequestResponseCycle):
    """One request and its answer, which says ``connection: close`` where that is the truth."""

    def __init__(
        self, *, is_last: Callable[[Cycle], bool], run: Callable[[Cycle], None], **options: Any
    ) -> None:
        super().__init__(**options)
        self._is_last = is_last
        self._run = run

    @property
    def is_complete(self) -> bool:
        """Whether the whole body came."""
        return not self.more_body

    def start(self) -> None:
        """Let the application answer."""
        self._run(self)

    def take(self, body: bytes) -> None:
        """Keep a piece of the body for the application; too much of it pauses reading."""
        if self.response_complete:
            return
        self.body += body
        if len(self.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    def complete(self) -> None:
        """Note that the body is complete."""
        self.more_body = False
        self.message_event.set()

    def settle(self) -> None:
        """Do nothing: the application takes what it wants."""

    def late(self) -> None:
        """Do nothing: the application has deadlines of its own."""

    def leave(self) -> None:
        """Tell the application that nobody waits."""
        self.disconnected = True
        self.message_event.set()

    def prepare(self) -> None:
        """Keep nothing: the application reads each head anew."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer."""
        # A body that was not read to its end would be taken for the next request.
        is_start = message["type"] == "http.response.start" and not self.response_started
        if is_start and (self.more_body or self._is_last(self)):
            self.keep_alive = False
        await super().send(message)

    async def send_500_response(self) -> None:
        """Answer for an application that was cancelled; all else it answers itself."""
        error = WorkerLost("the server is stopping")
        body = error_body(message_of(error))
        headers: Headers = [
            JSON_TYPE,
            (b"content-length", str(len(body)).encode("ascii")),
            (REQUEST_ID, request_id_of(self.scope["headers"]).encode("ascii")),
            (b"connection", b"close"),
        ]
        await self.send(
            {"type": "http.response.start", "status": status_of(error), "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

"""Connections that have sent nothing yet, which is all that some ever do.

Port scanners, health checks of balancers and storms of connects open and leave. The state of an
HTTP connection costs several times what the accept does, so it is made at the first byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from serving.web.protocol import RamrackHttpProtocol

# Event loops round times to their clock's tick; a timer that is early by it would look in vain.
_TICK_S = 0.001


class SilentConnections:
    """The silent connections of one server, all on one timer. Event-loop thread only.

    ``begin``: makes what a connection becomes with its first byte, when its time is over, or when
    the server stops; ``wait_s``: how long after the accept that is at the latest. ``connections``:
    all of the server, these among them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], RamrackHttpProtocol],
        wait_s: float,
        connections: set[Any],
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._wait_s = wait_s
        self._connections = connections
        # All may wait equally long, so the first one in is the first one due.
        self._since_s: dict[SilentConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def add(self, connection: SilentConnection) -> None:
        """Watch a new connection."""
        now_s = self._loop.time()
        self._connections.add(connection)
        self._since_s[connection] = now_s
        if self._is_over:
            self.begin(connection)
        elif self._timer is None:
            self._timer = self._loop.call_at(now_s + self._wait_s, self._look)

    def remove(self, connection: SilentConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._since_s.pop(connection, None)

    def begin(self, connection: SilentConnection) -> RamrackHttpProtocol:
        """Put a usual connection in the place of a silent one, with the deadlines that it had."""
        usual = self._begin()
        usual.silent_s = self._loop.time() - self._since_s[connection]
        self.remove(connection)
        connection.transport.set_protocol(usual)
        usual.connection_made(connection.transport)
        return usual

    def stop(self) -> None:
        """Begin all, and those to come at once: each is told what a stop means for it."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._since_s):
            self.begin(connection)

    def _look(self) -> None:
        self._timer = None
        while self._since_s:
            connection, since_s = next(iter(self._since_s.items()))
            due_s = since_s + self._wait_s
            if due_s > self._loop.time() + _TICK_S:
                self._timer = self._loop.call_at(due_s, self._look)
                return
            # It finds that its time is over, and ends as any other one.
            self.begin(connection)


class SilentConnection(asyncio.Protocol):
    """One connection until its first byte."""

    __slots__ = ("_all", "transport")
    transport: asyncio.Transport

    def __init__(self, connections: SilentConnections) -> None:
        self._all = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a byte."""
        self.transport = transport  # type: ignore[assignment]  # the loop's are of this type
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        """Become what answers requests, and let it have what came."""
        self._all.begin(self).data_received(data)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget a client that left without a word."""
        self._all.remove(self)

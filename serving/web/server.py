"""A uvicorn server for one inherited listener, with a stop that loses no accepted connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any, Final

import uvicorn

from serving.settings import Settings
from serving.web.exchange import Lane
from serving.web.handover import ConnectionQueue
from serving.web.head import AnswerHeads
from serving.web.known_heads import KnownHeads
from serving.web.parsing import HttpLimits
from serving.web.protocol import RamrackHttpProtocol
from serving.web.silent import SilentConnection, SilentConnections
from serving.web.sockets import BACKLOG, refuse_new_connections, waiting_connections

# Handshakes that were under way when the kernel began to refuse new ones end within this.
_HANDSHAKE_S: Final = 0.1
_POLL_S: Final = 0.01
_MAX_BACKLOG_S: Final = 2.0
# A connection that is busy at each look of a hand-over is told to close with its next answer.
_MOVE_S: Final = 1.0


class HttpServer(uvicorn.Server):
    """Serves one application on one listener until ``drain``.

    uvicorn's signal handlers and its own stop are left out: the first would race with those of the
    process, the second resets connections that wait in the kernel's queue. ``lane``: what answers
    some requests past the application. ``protocol_class``: what a connection is from its first
    byte on.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        on_refused: Callable[[Exception], None] | None = None,
        *,
        lane: Lane | None = None,
    ) -> None:
        fast_lane = lane

        class Protocol(RamrackHttpProtocol):
            lane = fast_lane
            heads = AnswerHeads()
            known = KnownHeads()
            limits = HttpLimits(
                max_header_bytes=settings.max_header_bytes,
                header_timeout_s=settings.header_timeout_s,
                write_timeout_s=settings.write_timeout_s,
                keep_alive_s=settings.keep_alive_s,
                on_refused=on_refused,
            )

        super().__init__(
            uvicorn.Config(
                app,
                http=self._silent,  # type: ignore[arg-type]  # uvicorn only calls it
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                # Without one it has a line ready for each connection, which is not logged.
                log_level=settings.log_level,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
            )
        )
        self._listener: socket.socket | None = None
        self.protocol_class = Protocol
        self._silence: SilentConnections | None = None
        self._queue: ConnectionQueue | None = None
        self._adoptions: set[asyncio.Task[Any]] = set()
        self._ticks: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket, queue: ConnectionQueue | None = None) -> None:
        """Begin to accept, and to go on with connections that a former worker left in ``queue``.

        Raises OSError or ssl.SSLError when certificate or key are no good.
        """
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        # Answers carry the date from the first one on, not from the first tick.
        await self.on_tick(0)
        await self.startup(sockets=[listener])
        self._listener = listener
        self._ticks = asyncio.create_task(self.main_loop(), name="http date")
        if queue is not None:
            self._queue = queue
            asyncio.get_running_loop().add_reader(queue.receiver_fd, self._adopt_waiting)

    def _silent(self, **_: object) -> asyncio.Protocol:
        if self._silence is None:
            limits = self.protocol_class.limits
            self._silence = SilentConnections(
                asyncio.get_running_loop(), self._usual,
                min(limits.header_timeout_s, limits.keep_alive_s), self.server_state.connections,
            )  # fmt: skip
        return SilentConnection(self._silence)

    def _usual(self) -> RamrackHttpProtocol:
        return self.protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def drain(self, timeout_s: float, *, is_lasting: bool = False) -> bool:
        """Accept what the kernel accepted, answer everything, close; return whether all ended.

        ``is_lasting``: others have the listener too, so what waits in it is left to them.
        """
        if self._listener is None:
            return True
        if is_lasting:
            self._stop_accepting()
        else:
            refuse_new_connections(self._listener)
            await self._accept_backlog(self._listener)
        # One more pass, so that the newest connections are read before they are told to end.
        await asyncio.sleep(_POLL_S)
        self._stop_accepting()
        return await self._finish(timeout_s)

    async def hand_over(self, timeout_s: float, is_over: asyncio.Event) -> bool:
        """Leave the listener to another worker, and every connection as soon as it is idle.

        No connection is closed, but those that cannot move: with the next answer, or after
        ``timeout_s``. ``is_over``: set where nobody will take connections any more; the rest is
        then drained. Returns whether all ended in time.
        """
        if self._listener is None or self._queue is None:
            return True
        queue, loop = self._queue, asyncio.get_running_loop()
        self._stop_accepting()
        now = began = loop.time()
        # One pass before the first look, so that what was just accepted is among the connections.
        await asyncio.sleep(_POLL_S)
        while self._is_occupied() and not is_over.is_set() and now < began + timeout_s:
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, RamrackHttpProtocol):
                    self._move(connection, queue, is_late=now > began + _MOVE_S)
            await asyncio.sleep(_POLL_S)
        return await self._finish(timeout_s)

    def _move(
        self, connection: RamrackHttpProtocol, queue: ConnectionQueue, *, is_late: bool
    ) -> None:
        if connection.can_move():
            # Nothing is awaited between the look and the close: no byte is read in between, and
            # the copy keeps the connection open.
            if queue.put(connection.transport.get_extra_info("socket").fileno()):
                connection.transport.close()
        elif is_late or connection.transport.get_extra_info("sslcontext") is not None:
            connection.announce_close()

    def _stop_accepting(self) -> None:
        if self._queue is not None:
            asyncio.get_running_loop().remove_reader(self._queue.receiver_fd)
        for server in self.servers:
            server.close()
        if self._silence is not None:
            self._silence.stop()
        self._listener = None
        self.should_exit = True

    async def _finish(self, timeout_s: float) -> bool:
        """Answer what was received, then close; return whether all ended in time."""
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(timeout_s):
                # uvicorn's sets have no events, so they are looked at again and again.
                while self._is_occupied():  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False
        finally:
            if self._ticks is not None:
                self._ticks.cancel()
        return True

    def _is_occupied(self) -> bool:
        state = self.server_state
        return bool(state.connections or state.tasks or self._adoptions)

    def _adopt_waiting(self) -> None:
        while self._queue is not None and (sock := self._queue.get()) is not None:
            task = asyncio.create_task(self._adopt(sock), name="adopt a connection")
            self._adoptions.add(task)
            task.add_done_callback(self._adoptions.discard)

    async def _adopt(self, sock: socket.socket) -> None:
        # One whose client left meanwhile is no loss.
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(self._silent, sock)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the process."""
        yield

    async def _accept_backlog(self, listener: socket.socket) -> None:
        await asyncio.sleep(_HANDSHAKE_S)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_MAX_BACKLOG_S):
                while waiting_connections(listener):  # noqa: ASYNC110 - the kernel's counter
                    await asyncio.sleep(_POLL_S)
        self._adopt_waiting()

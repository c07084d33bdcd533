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
from serving.web.head import AnswerHeads
from serving.web.parsing import HttpLimits
from serving.web.protocol import RamrackHttpProtocol
from serving.web.sockets import BACKLOG, refuse_new_connections, waiting_connections

# Handshakes that were under way when the kernel began to refuse new ones end within this.
_HANDSHAKE_S: Final = 0.1
_POLL_S: Final = 0.01
_MAX_BACKLOG_S: Final = 2.0


class HttpServer(uvicorn.Server):
    """Serves one application on one listener until ``drain``.

    uvicorn's signal handlers and its own stop are left out: the first would race with those of the
    process, the second resets connections that wait in the kernel's queue. ``lane``: what answers
    some requests past the application.
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
                http=Protocol,
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
            )
        )
        self._listener: socket.socket | None = None
        self._ticks: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept. Raises OSError or ssl.SSLError when certificate or key are no good."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        # Answers carry the date from the first one on, not from the first tick.
        await self.on_tick(0)
        await self.startup(sockets=[listener])
        self._listener = listener
        self._ticks = asyncio.create_task(self.main_loop(), name="http date")

    async def drain(self, timeout_s: float) -> bool:
        """Accept what the kernel accepted, answer everything, close; return whether all ended."""
        if self._listener is None:
            return True
        refuse_new_connections(self._listener)
        await self._accept_backlog(self._listener)
        for server in self.servers:
            server.close()
        self._listener = None
        self.should_exit = True
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(timeout_s):
                # uvicorn's sets have no events, so they are looked at again and again.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False
        finally:
            if self._ticks is not None:
                self._ticks.cancel()
        return True

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
        # One more pass, so that the newest connections are read before they are told to end.
        await asyncio.sleep(_POLL_S)

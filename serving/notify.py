"""What the service manager is told, as systemd wants it: ready, alive, about to stop.

See sd_notify(3): one datagram each to the socket in ``NOTIFY_SOCKET``. Without one nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Final

_log = logging.getLogger(__name__)
_BEATS_PER_LIMIT: Final = 3
_US_PER_S: Final = 1_000_000


class ServiceManager:
    """The manager that started this process, if there is one that listens."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._watchdog_s = _watchdog_s(environ)

    @contextlib.asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Say that the server is ready; inside, say that the event loop is alive, often enough."""
        self._send("READY=1\nSTATUS=serving")
        beats = asyncio.create_task(self._beat(), name="watchdog")
        try:
            yield
        finally:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beats

    def stopping(self) -> None:
        """Say that an orderly stop has begun."""
        self._send("STOPPING=1\nSTATUS=answering what was accepted")

    async def _beat(self) -> None:
        while self._watchdog_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / _BEATS_PER_LIMIT)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), self._address)
        except OSError as error:
            _log.warning("the service manager does not listen: %s", error)


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return after how long without a sign of life the manager ends this process; 0: never."""
    pid, limit = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if not limit.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(limit) / _US_PER_S

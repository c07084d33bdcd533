"""Workers of the server that this process was before: they serve until their successors do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Sequence

from models.memory import resident_anonymous_bytes
from serving.web.inherit import LeftWorker
from serving.workers import messages
from serving.workers.wire import Wire

_log = logging.getLogger(__name__)
# What the former release says is of no interest, but somebody has to take it.
_READ_BYTES = 65536
_EXIT_GRACE_S = 5.0


class FormerWorkers:
    """All of them as one. Event-loop thread only.

    Nothing is understood of what they say, for their release may be another one. They understand
    two frames in every release: ``stop`` and ``hand_over``, each with ``drain_s``.
    """

    def __init__(self, left: Sequence[LeftWorker]) -> None:
        self._left = list(left)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._ends: dict[int, asyncio.Task[None]] = {}

    @property
    def are_serving(self) -> bool:
        """Whether some of them are still there."""
        return bool(self.slots)

    @property
    def slots(self) -> frozenset[int]:
        """The slots of those that are still there."""
        alive = {pid for pid, end in self._ends.items() if not end.done()}
        return frozenset(worker.slot for worker in self._left if worker.pid in alive)

    def private_bytes(self) -> int:
        """Return what they hold for themselves, and give back when they end."""
        return sum(resident_anonymous_bytes(worker.pid) for worker in self._left)

    async def open(self) -> None:
        """Begin to listen to them."""
        for worker in self._left:
            sock = socket.socket(fileno=worker.wire_fd)
            os.set_inheritable(worker.wire_fd, False)
            sock.setblocking(False)
            reader, self._writers[worker.pid] = await asyncio.open_connection(sock=sock)
            self._ends[worker.pid] = asyncio.create_task(
                _ended(worker.pid, reader), name=f"former worker {worker.pid}"
            )

    async def end(self, drain_s: float, slots: int, *, is_lasting: bool = False) -> None:
        """Let them end; return when all have.

        ``slots``: those below have a worker of this server, which takes their connections; others
        answer what they accepted and close. ``is_lasting``: what waits in listeners is left.
        """
        for worker in self._left:
            kind = messages.HAND_OVER if worker.slot < slots else messages.STOP
            wire = Wire.around(self._writers[worker.pid])
            with contextlib.suppress(ConnectionError):
                await wire.send(kind, {"drain_s": drain_s, "is_lasting": is_lasting})
        if not self._ends:
            return
        _, late = await asyncio.wait(self._ends.values(), timeout=2 * drain_s + _EXIT_GRACE_S)
        for pid, end in self._ends.items():
            if end in late:
                _log.warning("a former worker did not end", extra={"pid": pid})
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        await asyncio.gather(*self._ends.values())
        for writer in self._writers.values():
            writer.close()


async def _ended(pid: int, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(_READ_BYTES):
            pass
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, over.set)
        await over.wait()
        loop.remove_reader(pidfd)
    finally:
        os.close(pidfd)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended

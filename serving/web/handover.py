"""Open connections on their way from one worker to the next one of its slot.

A worker that is replaced has clients that keep their connections open and may send at any moment;
whatever it told them, some request would cross its close. So it closes nothing: it gives the
connection, of which it holds no byte, to its successor as a descriptor.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Final, Self

from serving.web.sockets import waiting_connections

_MARK: Final = b"c"


class ConnectionQueue:
    """The way of one slot. Parent and workers hold both ends, so nothing in it goes with a worker.

    What nobody has taken yet waits in the kernel, as connections wait in a listener.
    """

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self._sender = sender
        self._receiver = receiver
        for end in (sender, receiver):
            end.setblocking(False)

    @classmethod
    def open(cls) -> Self:
        """Make an empty one."""
        return cls(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))

    @classmethod
    def of_fds(cls, sender_fd: int, receiver_fd: int) -> Self:
        """Return the one whose ends these descriptors are."""
        return cls(socket.socket(fileno=sender_fd), socket.socket(fileno=receiver_fd))

    @property
    def fds(self) -> tuple[int, int]:
        """Descriptors of both ends, for ``of_fds`` in another process."""
        return self._sender.fileno(), self._receiver.fileno()

    @property
    def receiver_fd(self) -> int:
        """Descriptor that is readable while a connection waits."""
        return self._receiver.fileno()

    def put(self, fd: int) -> bool:
        """Send a copy of a descriptor; False where there is no room for it now."""
        try:
            socket.send_fds(self._sender, [_MARK], [fd])
        except OSError:
            return False
        return True

    def get(self) -> socket.socket | None:
        """Return the connection that waits longest, None where there is none."""
        with contextlib.suppress(BlockingIOError):
            _, fds, _, _ = socket.recv_fds(self._receiver, len(_MARK), 1)
            for fd in fds:
                return socket.socket(fileno=fd)
        return None

    def close(self) -> None:
        """Close both ends in this process."""
        self._sender.close()
        self._receiver.close()


def move_waiting(
    listener: socket.socket, others: Sequence[ConnectionQueue], own: ConnectionQueue
) -> int:
    """Give connections that wait in the listener of a dead worker to workers that live.

    ``others``: their ways, at least one. What finds no room there waits for the next worker in
    ``own``. Returns how many were taken from the listener. For the parent, and not with TLS, whose
    connections a worker takes over from nobody.
    """
    listener.setblocking(False)
    waiting = waiting_connections(listener)
    for number in range(waiting):
        try:
            connection, _ = listener.accept()
        except OSError:
            # Its client left meanwhile, or there is no descriptor left: the next worker will see.
            return number
        with connection:
            queue = others[number % len(others)]
            is_moved = queue.put(connection.fileno()) or own.put(connection.fileno())
        if not is_moved:
            return number
    return waiting

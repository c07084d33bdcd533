"""Listeners that this process did not make: from a service manager, or from the server before it.

A service manager passes sockets as systemd does (``LISTEN_FDS``, ``LISTEN_FDNAMES``). A server that
replaces itself passes its own, and its workers, in ``RAMRACK_HANDOVER``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown

HANDOVER: Final = "RAMRACK_HANDOVER"
DATA: Final = "data"
ADMIN: Final = "admin"
_FIRST_FD: Final = 3
_LISTEN: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class LeftWorker:
    """A worker of the server before: its slot, process, and the parent's end of its wire."""

    slot: int
    pid: int
    wire_fd: int


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a start finds open. ``queues``: both ends of each slot's connection queue.

    ``is_lasting``: somebody else holds the listeners, so connections may come after our end.
    """

    data: Sequence[socket.socket] = ()
    admin: socket.socket | None = None
    queues: Sequence[tuple[int, int]] = ()
    workers: Sequence[LeftWorker] = ()
    is_lasting: bool = False


def take_inherited(environ: MutableMapping[str, str]) -> Inherited:
    """Return what was passed to this process, and take it out of ``environ``.

    Raises InvalidInput for sockets of a service manager that have no known name.
    """
    text = environ.pop(HANDOVER, "")
    passed = [environ.pop(name, "") for name in _LISTEN]
    if text:
        document = json.loads(text)
        if document["pid"] == os.getpid():
            return _from_server(document)
    if passed[0] == str(os.getpid()) and passed[1].isdigit():
        return _from_manager(int(passed[1]), passed[2].split(":") if passed[2] else [])
    return Inherited()


def _from_manager(count: int, names: list[str]) -> Inherited:
    data: list[socket.socket] = []
    admin: list[socket.socket] = []
    for index in range(count):
        name = names[index] if index < len(names) else ""
        if name not in (DATA, ADMIN):
            raise InvalidInput(
                f"socket {index + 1} of the service manager is named {shown(name)}: set "
                f"FileDescriptorName={DATA} or FileDescriptorName={ADMIN} in its .socket unit"
            )
        sock = _adopted(_FIRST_FD + index)
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            raise InvalidInput(f"socket {name!r} of the service manager is not one of TCP")
        (data if name == DATA else admin).append(sock)
    if len(admin) > 1:
        raise InvalidInput(f"the service manager passed {len(admin)} admin sockets: pass one")
    return Inherited(data, admin[0] if admin else None, is_lasting=True)


def _from_server(document: dict[str, Any]) -> Inherited:
    return Inherited(
        data=[_adopted(fd) for fd in document["data"]],
        admin=_adopted(document["admin"]),
        queues=[(sender, receiver) for sender, receiver in document["queues"]],
        workers=[LeftWorker(**item) for item in document["workers"]],
        is_lasting=document["is_lasting"],
    )


def _adopted(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


@dataclass(slots=True)
class Handover:
    """What a server leaves to the one that goes on in its process. Copies, open until ``exec``."""

    data: list[int] = field(default_factory=list)
    admin: int = -1
    queues: list[tuple[int, int]] = field(default_factory=list)
    workers: list[LeftWorker] = field(default_factory=list)
    is_lasting: bool = False

    def replace_process(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Run ``command`` in this process from now on. Raises OSError where it cannot be run."""
        document = {
            "pid": os.getpid(),
            "data": self.data,
            "admin": self.admin,
            "queues": self.queues,
            "workers": [{"slot": w.slot, "pid": w.pid, "wire_fd": w.wire_fd} for w in self.workers],
            "is_lasting": self.is_lasting,
        }
        passed = {**environ, HANDOVER: json.dumps(document)}
        os.execve(command[0], list(command), passed)  # noqa: S606 - no shell is wanted


def copy_of(fd: int) -> int:
    """Return a copy of a descriptor that the next program in this process gets as well."""
    copy = os.dup(fd)
    os.set_inheritable(copy, True)
    return copy

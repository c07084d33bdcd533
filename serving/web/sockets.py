"""The listening sockets: one for each worker slot, made and held by the parent.

A worker's death closes nothing: connections that the kernel accepted for its slot wait there for
the replacement, which inherits the same socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from serving.errors import ServingError

BACKLOG: Final = 1024
# linux/filter.h and asm-generic/socket.h; the socket module has no names for them.
_SO_ATTACH_FILTER: Final = 26
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_RETURN: Final = 0x06
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_MODULO: Final = 0x94
_JUMP_IF_EQUAL: Final = 0x15
_WHOLE_PACKET: Final = 0xFFFFFFFF
_ANCILLARY_RANDOM: Final = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_TCP_FLAGS_OFFSET: Final = 13
_SYN_AND_ACK: Final = 0x12
_SYN: Final = 0x02
# struct tcp_info: on a listener tcpi_unacked is the number of connections nobody accepted yet.
_TCP_INFO_BYTES: Final = 104
_TCP_INFO_UNACKED_OFFSET: Final = 24


class AddressUnavailable(ServingError):
    """An address of the settings cannot be listened on."""


def open_listeners(
    host: str, port: int, count: int, what: str, advice: str = ""
) -> list[socket.socket]:
    """Return ``count`` listening sockets on one port; port 0 picks a free one for all of them.

    The port is first taken without SO_REUSEPORT: with it, two servers of one user would share the
    port in silence and each would get half of the requests. Raises AddressUnavailable, with
    ``advice`` where the port is taken.
    """
    family, address = _resolve(host, port, what)
    opened: list[socket.socket] = []
    try:
        if port:
            _bound(family, address, is_shared=False).close()
        for _ in range(count):
            listener = _bound(family, address, is_shared=count > 1)
            opened.append(listener)
            listener.listen(BACKLOG)
            address = (address[0], listener.getsockname()[1], *address[2:])
    except OSError as error:
        close_all(opened)
        reason = f"cannot be used: {os.strerror(error.errno or 0)}"
        if error.errno == errno.EADDRINUSE:
            reason = "is in use by another process" + (f": {advice}" if advice else "")
        raise AddressUnavailable(f"{what} address {host}:{port} {reason}") from error
    return opened


def fit_listeners(found: Sequence[socket.socket], count: int) -> list[socket.socket]:
    """Return ``count`` listeners made of those that were found open, at least one.

    Where there are too few, more are opened beside them; where the kernel does not let us, because
    somebody else made them, several slots share one.
    """
    fitted = list(found[:count])
    while len(fitted) < count:
        fitted.append(_beside(found[len(fitted) % len(found)]))
    return fitted


def is_at(listener: socket.socket, host: str, port: int, what: str) -> bool:
    """Return whether a listener has the address of the settings; port 0 is any."""
    name = listener.getsockname()
    return port in (0, name[1]) and _resolve(host, port, what)[1][0] == name[0]


def _beside(listener: socket.socket) -> socket.socket:
    try:
        more = _bound(listener.family, listener.getsockname(), is_shared=True)
        more.listen(BACKLOG)
    except OSError:
        return listener.dup()
    return more


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close every socket."""
    for item in sockets:
        item.close()


def url_of(listener: socket.socket, host: str, *, is_tls: bool = False) -> str:
    """Return the URL under which a listener answers."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{listener.getsockname()[1]}"


def refuse_new_connections(listener: socket.socket) -> None:
    """Let the kernel drop connection attempts, while those already begun can still be accepted.

    Closing a listener resets what waits in its queue, and connections could arrive between the
    last accept and the close. With this filter the queue only shrinks; a dropped client tries
    again a second later and is refused then, or reaches the next server.
    """
    program = (
        (_LOAD_BYTE, 0, 0, _TCP_FLAGS_OFFSET),
        (_AND, 0, 0, _SYN_AND_ACK),
        (_JUMP_IF_EQUAL, 0, 1, _SYN),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, _WHOLE_PACKET),
    )
    with contextlib.suppress(OSError):  # a kernel without it keeps the small window open
        _attach(listener, _SO_ATTACH_FILTER, program)


def steer(listeners: Sequence[socket.socket], live: Sequence[int]) -> None:
    """Send new connections only to the slots in ``live``; to all when none is.

    Without it the kernel goes on giving a dead worker's slot its share, and those clients wait
    for the replacement although siblings are idle.
    """
    slots = list(live) or list(range(len(listeners)))
    if len(listeners) < 2:
        return
    program = [(_LOAD_WORD, 0, 0, _ANCILLARY_RANDOM), (_MODULO, 0, 0, len(slots))]
    for index, slot in enumerate(slots):
        program += [(_JUMP_IF_EQUAL, 0, 1, index), (_RETURN, 0, 0, slot)]
    program.append((_RETURN, 0, 0, slots[0]))
    with contextlib.suppress(OSError):  # the kernel's own hash over all slots is the fallback
        _attach(listeners[0], _SO_ATTACH_REUSEPORT_CBPF, tuple(program))


def waiting_connections(listener: socket.socket) -> int:
    """Return how many connections wait to be accepted."""
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(struct.unpack_from("=I", info, _TCP_INFO_UNACKED_OFFSET)[0])


def _resolve(host: str, port: int, what: str) -> tuple[int, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise AddressUnavailable(f"{what} address {host}:{port} is not an address") from error
    return found[0][0], found[0][4]


def _bound(family: int, address: tuple[Any, ...], *, is_shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _attach(sock: socket.socket, option: int, program: Sequence[tuple[int, int, int, int]]) -> None:
    """Set a classic BPF program; the kernel copies it during the call."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    sock.setsockopt(
        socket.SOL_SOCKET, option, struct.pack("HL", len(program), ctypes.addressof(code))
    )

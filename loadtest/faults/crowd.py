"""A crowd in a process of its own: clients that begin and do not go on, or that only connect.

``python -m loadtest.faults.crowd slow PORT COUNT LIMIT_S`` opens connections, sends what keeps each
waiting, and says how many there were at once, how many were not hung up on within the limit, and
how old the oldest one became.
``... connects PORT COUNT RATE`` opens and leaves connections at a rate. Prints one line of JSON.
Plain sockets: what it takes of the processor, the server beside it lacks. Those who only connect
also come after everybody else there: a storm's clients have machines of their own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Final

_PATH: Final = "/v2/models/echo/infer"
_HEAD: Final = f"POST {_PATH} HTTP/1.1\r\nhost: loopback\r\ncontent-length: 1000\r\n".encode()
# Half a head, half a body, a line end; then the same two with a byte a second behind them.
_BEGUN: Final = (_HEAD, _HEAD + b"\r\n{", b"\r\n", _HEAD + b"x: ", _HEAD + b"\r\n ")
_TRICKLED: Final = (b"", b"", b"", b"a", b" ")
_TRICKLE_S: Final = 1.0
# Opened over a moment: what thousands of connects at once cost is looked at by connects alone.
_OPENED_PER_S: Final = 1000
# Source addresses: each has ports of its own, and a closed one is not free at once.
_SOURCES: Final = 100
_RESET: Final = struct.pack("ii", 1, 0)
_IP_BIND_ADDRESS_NO_PORT: Final = 24
_LAST: Final = 19
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN})


def _opened(port: int, number: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    client.bind((f"127.0.0.{2 + number % _SOURCES}", 0))
    client.connect(("127.0.0.1", port))
    return client


def slow(port: int, count: int, limit_s: float) -> dict[str, float]:
    """Hold ``count`` connections open until the server closes them, or for ``limit_s`` seconds."""
    clients: dict[int, tuple[socket.socket, bytes, float]] = {}
    poll = select.epoll()
    began = trickled = time.monotonic()
    number, most, oldest_s = 0, 0, 0.0
    while (number < count or clients) and time.monotonic() - began < limit_s:
        while number < min(count, (time.monotonic() - began) * _OPENED_PER_S):
            client = _opened(port, number)
            client.sendall(_BEGUN[number % len(_BEGUN)])
            client.setblocking(False)
            more = _TRICKLED[number % len(_BEGUN)]
            clients[client.fileno()] = (client, more, time.monotonic())
            poll.register(client, select.EPOLLIN | select.EPOLLRDHUP)
            number += 1
        most = max(most, len(clients))
        for descriptor, _ in poll.poll(0.01):
            client, _, since = clients[descriptor]
            if _is_over(client):
                poll.unregister(descriptor)
                del clients[descriptor]
                client.close()
                oldest_s = max(oldest_s, time.monotonic() - since)
        if time.monotonic() - trickled >= _TRICKLE_S:
            trickled = time.monotonic()
            for client, more, _ in clients.values():
                _trickle(client, more)
    for client, _, _ in clients.values():
        client.close()
    return {"left": count - number + len(clients), "at_once": most, "oldest_s": oldest_s}


def _is_over(client: socket.socket) -> bool:
    """Read what there is; return whether the server has hung up."""
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _trickle(client: socket.socket, more: bytes) -> None:
    try:
        client.send(more)
    except BlockingIOError:
        return
    except OSError as error:
        # Hung up on in this very moment: the poll says so next.
        if error.errno not in _GONE:
            raise


def connects(port: int, count: int, rate: float) -> dict[str, float]:
    """Open ``count`` connections at ``rate`` a second; leave each at once, in one of three ways."""
    os.nice(_LAST)
    began, refused = time.monotonic(), 0
    for number in range(count):
        ahead = began + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        try:
            client = _opened(port, number)
            if number % 3 == 1:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif number % 3 == 2:
                client.send(b"GET /v2 HT")
            client.close()
        except OSError:
            refused += 1
    return {"refused": refused, "connects/s": count / (time.monotonic() - began)}


def main(arguments: list[str]) -> int:
    """Do what the arguments say and print what came of it."""
    kind, port, count, number = arguments
    make = {"slow": slow, "connects": connects}[kind]
    found = make(int(port), int(count), float(number))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

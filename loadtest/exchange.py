"""Requests over non-blocking sockets: cheap and exact enough not to be what is measured.

One thread, one epoll, at most one request on a connection at a time. A connection that breaks,
times out or says ``connection: close`` is replaced when it is needed again. Each request ends
exactly once: with an answer's status, or with 0 and a reason.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from loadtest.target import Target

NO_ANSWER: Final = 0
# A buffer for more than the answer needs costs 12 us a read: it comes from the kernel each time.
_READ_BYTES: Final = 16 * 1024
_LARGE_READ_BYTES: Final = 256 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_EVENTS_A_TURN: Final = 32
_SWEEP_NS: Final = 50_000_000
_IN_PROGRESS: Final = (0, errno.EINPROGRESS)


@dataclass(slots=True)
class Exchange:
    """One request and how it ended, in nanoseconds of the monotonic clock.

    ``status``: the HTTP status, or NO_ANSWER with the ``reason``. ``watched``: the value of the
    header that was asked for.
    """

    intended_ns: int
    sent_ns: int = 0
    done_ns: int = 0
    status: int = NO_ANSWER
    reason: str = ""
    watched: str = ""

    @property
    def latency_ns(self) -> int:
        """From the intended start to the end, so that waiting to be sent counts."""
        return self.done_ns - self.intended_ns


class _Line:
    """One connection with at most one request on it."""

    __slots__ = ("exchange", "received", "socket", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.exchange: Exchange | None = None
        self.received = b""
        self.unsent: memoryview | None = None


class Exchanges:
    """Sends requests on up to ``most`` connections; more requests wait in order for a free one.

    ``ended`` is called once for each request. Not safe for threads.
    """

    def __init__(
        self, target: Target, ended: Callable[[Exchange], None], *,
        most: int, timeout_s: float, watch: str = "",
    ) -> None:  # fmt: skip
        self._target = target
        self._ended = ended
        self._most = most
        self._timeout_ns = int(timeout_s * 1e9)
        self._watch = watch.lower().encode() + b":" if watch else b""
        self._epoll = select.epoll()
        self._lines: dict[int, _Line] = {}
        self._free: list[_Line] = []
        self._waiting: deque[Exchange] = deque()
        self._next_sweep_ns = 0
        self._read_bytes = _READ_BYTES
        self.waited = 0
        self.most_open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for line in list(self._lines.values()):
            line.socket.close()
        self._lines.clear()
        self._epoll.close()

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._lines) - len(self._free) + len(self._waiting)

    def open(self, count: int) -> None:
        """Open connections ahead of time, so that the first requests do not pay for it."""
        for _ in range(min(count, self._most) - len(self._lines)):
            line = self._opened()
            if isinstance(line, _Line):
                self._free.append(line)

    def start(self, intended_ns: int) -> None:
        """Send one request now, or as soon as a connection is free."""
        exchange = Exchange(intended_ns)
        if self._free:
            self._send(self._free.pop(), exchange)
        elif len(self._lines) < self._most:
            self._send_on_new(exchange)
        else:
            self.waited += 1
            self._waiting.append(exchange)

    def turn(self, wait_s: float) -> None:
        """Handle what has come, waiting at most ``wait_s`` for the first of it."""
        if wait_s > 0:
            # epoll counts in milliseconds, select in microseconds; an epoll is a file, too.
            select.select((self._epoll,), (), (), wait_s)
        for number, events in self._epoll.poll(0, _EVENTS_A_TURN):
            line = self._lines.get(number)
            if line is None:
                continue
            if line.unsent is not None and events & select.EPOLLOUT:
                self._write(line)
            elif events & ~select.EPOLLOUT:
                self._read(line)
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + _SWEEP_NS
            self._sweep(now_ns)

    def give_up(self, reason: str) -> None:
        """End everything that is under way without an answer."""
        while self._waiting:
            self._end(self._waiting.popleft(), NO_ANSWER, reason)
        for line in list(self._lines.values()):
            if line.exchange is not None:
                self._broken(line, reason)

    def _opened(self) -> _Line | str:
        """Return a connection that is open or opening, or why there is none."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = connection.connect_ex(self._target.address)
        if code not in _IN_PROGRESS:
            connection.close()
            return f"cannot connect: {errno.errorcode.get(code, code)}"
        line = _Line(connection)
        self._lines[connection.fileno()] = line
        self.most_open = max(self.most_open, len(self._lines))
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return line

    def _send_on_new(self, exchange: Exchange) -> None:
        line = self._opened()
        if isinstance(line, str):
            self._end(exchange, NO_ANSWER, line)
        else:
            self._send(line, exchange)

    def _send(self, line: _Line, exchange: Exchange) -> None:
        line.exchange = exchange
        exchange.sent_ns = time.monotonic_ns()
        request = self._target.request
        try:
            sent = line.socket.send(request)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(line, f"cannot send: {error.strerror}")
            return
        if sent < len(request):
            line.unsent = memoryview(request)[sent:]
            self._epoll.modify(line.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _write(self, line: _Line) -> None:
        if line.unsent is None:
            return
        try:
            sent = line.socket.send(line.unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(line, f"cannot send: {error.strerror}")
            return
        line.unsent = line.unsent[sent:] if sent < len(line.unsent) else None
        if line.unsent is None:
            self._epoll.modify(line.socket.fileno(), select.EPOLLIN)

    def _read(self, line: _Line) -> None:
        try:
            data = line.socket.recv(self._read_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(line, f"connection broke: {error.strerror}")
            return
        if not data:
            self._broken(line, "connection closed without a whole answer")
            return
        if len(data) == _READ_BYTES:
            # All answers of one target are about as long.
            self._read_bytes = _LARGE_READ_BYTES
        line.received = line.received + data if line.received else data
        if line.exchange is None:
            self._broken(line, "")
            return
        try:
            self._answered(line, line.exchange)
        except ValueError as error:
            self._broken(line, f"not an answer: {error}")

    def _answered(self, line: _Line, exchange: Exchange) -> None:
        """End the request if its answer is whole; raises ValueError for what is no answer."""
        received = line.received
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if len(received) > _MAX_HEAD_BYTES:
                raise ValueError(f"no end of the head in {len(received)} bytes")
            return
        head = received[: end + 2].lower()
        if not head.startswith(b"http/1.1 "):
            raise ValueError(repr(bytes(head[:40])))
        status = int(head[9:12])
        length = header(head, b"content-length:")
        if not length.isdigit():
            raise ValueError("it has no Content-Length")
        if len(received) < end + 4 + int(length):
            return
        watched = header(head, self._watch).decode("latin-1") if self._watch else ""
        reason = ""
        if status >= 400:
            reason = f"{status}: {received[end + 4 : end + 204].decode(errors='replace')}"
        line.received = b""
        line.exchange = None
        if b"\r\nconnection: close" in head or line.unsent is not None:
            self._drop(line)
        elif self._waiting:
            self._send(line, self._waiting.popleft())
        else:
            self._free.append(line)
        self._end(exchange, status, reason, watched)
        self._take_waiting()

    def _broken(self, line: _Line, reason: str) -> None:
        exchange, line.exchange = line.exchange, None
        self._drop(line)
        if exchange is not None:
            self._end(exchange, NO_ANSWER, reason)
        self._take_waiting()

    def _take_waiting(self) -> None:
        while self._waiting and len(self._lines) < self._most:
            self._send_on_new(self._waiting.popleft())

    def _drop(self, line: _Line) -> None:
        self._lines.pop(line.socket.fileno(), None)
        with contextlib.suppress(ValueError):
            self._free.remove(line)
        line.socket.close()

    def _sweep(self, now_ns: int) -> None:
        """End what is older than the timeout, counted from its intended start."""
        oldest_ns = now_ns - self._timeout_ns
        for line in list(self._lines.values()):
            if line.exchange is not None and line.exchange.intended_ns < oldest_ns:
                self._broken(line, "timed out")
        while self._waiting and self._waiting[0].intended_ns < oldest_ns:
            self._end(self._waiting.popleft(), NO_ANSWER, "timed out before it could be sent")

    def _end(self, exchange: Exchange, status: int, reason: str, watched: str = "") -> None:
        exchange.done_ns = time.monotonic_ns()
        exchange.status = status
        exchange.reason = reason
        exchange.watched = watched
        self._ended(exchange)


def header(head: bytes, name: bytes) -> bytes:
    """Return the value of ``name`` (lower case, with its colon) in a lower-case head."""
    begin = head.find(b"\r\n" + name)
    if begin < 0:
        return b""
    begin += 2 + len(name)
    return head[begin : head.find(b"\r\n", begin)].strip()

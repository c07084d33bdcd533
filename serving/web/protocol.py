"""uvicorn's HTTP/1.1 protocol with what it lacks for strangers' traffic and a lossless stop.

Added: an offer to upgrade is ignored and the request answered; the head has a size and a deadline;
a peer that does not read has one; errors are JSON and come in their turn; a stop answers what was
received. There is one live parser at any time.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from registry.errors import InvalidInput
from serving.errors import (
    HeadersTooLarge,
    MethodNotAllowed,
    RequestTooSlow,
    message_of,
    status_of,
)
from serving.web.cycle import AnswerTransport, Cycle, Flow
from serving.web.errors import JSON_TYPE, REQUEST_ID, error_body, request_id_of

# How long what a client still sends is read and thrown away after the last answer: closing at once
# would reset the connection, and the client might lose the answer with it.
LINGER_S: Final = 1.0
# How long an idle connection is listened to after a stop began: a request may be on its way.
STOP_GRACE_S: Final = 0.2
_UPGRADE_HEADERS: Final = (b"upgrade", b"http2-settings")
# Spaces, version and line ends of the request line; separators of a header line.
_LINE_BYTES: Final = 16
_HEADER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one connection. ``on_refused`` hears of each request that never became one."""

    max_header_bytes: int = 16 * 1024
    header_timeout_s: float = 5.0
    write_timeout_s: float = 10.0
    keep_alive_s: float = 75.0
    on_refused: Callable[[Exception], None] | None = None


class _Refused(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RamrackHttpProtocol(HttpToolsProtocol):
    """One connection.

    Guarantees: answers come in the order of the requests, an error of the connection after the
    answers that are due before it; what was received before a stop is answered.
    """

    limits: ClassVar[HttpLimits] = HttpLimits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._active: Cycle | None = None
        self._plain_head: bytes | None = None
        self._last_words = b""
        self._is_message_open = False
        self._is_head_open = False
        # Deaf: what comes is thrown away. Ending: the last answer is out.
        self._is_deaf = False
        self._is_ending = False
        self._is_stopping = False
        self._head_bytes = 0
        # Bytes since the parser last gave anything away: an endless header line, or trailer.
        self._silent_bytes = 0
        self._unflushed_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection; its first head is due in header_timeout_s."""
        super().connection_made(transport)
        self.flow = self._flow = Flow(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is no request is answered and ends the connection."""
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        self._silent_bytes += len(data)
        if not self._is_message_open or self._is_head_open:
            self._start_head_timer()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(_reason_of(error))
        else:
            if self._silent_bytes > self.limits.max_header_bytes:
                self._refuse(self._head_too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request under way that nobody waits for it, and forget those behind."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self.pipeline.clear()
        if self._active is not None:
            self._leave(self._active)

    def pause_writing(self) -> None:
        """Note that the peer does not read; it has write_timeout_s to take something."""
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        """Note that the peer reads again."""
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def shutdown(self) -> None:
        """Answer what was received or is being received, then close; called when a stop begins."""
        self._is_stopping = True
        self._unset_keepalive_if_required()
        if self._is_idle():
            self._become_idle()

    def can_move(self) -> bool:
        """Say whether this process holds nothing of the connection, so another can go on with it.

        False for TLS, whose keys are here.
        """
        return (
            self._is_idle()
            and not self._is_deaf
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
            and self.transport.get_extra_info("sslcontext") is None
        )

    def announce_close(self) -> None:
        """Let the next answer be the last one and say so; a client may still ask for it."""
        self._is_stopping = True

    # What the parser calls

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_message_open = True
        self._is_head_open = True
        self._head_bytes = _LINE_BYTES

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line."""
        self._count_head(len(name) + len(value) + _HEADER_BYTES)
        # A trailer is not part of what the request said before its body.
        if self._is_head_open:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or let it wait its turn."""
        self._silent_bytes = 0
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise _Refused(MethodNotAllowed("method CONNECT is not allowed: this is no proxy"))
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise _Refused(InvalidInput("request: the header Host stands twice"))
        if self.parser.should_upgrade():
            # The parser takes what follows for another protocol; it is fed again without the offer.
            self._plain_head = self._head_without_upgrade(method)
            return
        self._is_head_open = False
        self._stop_head_timer()
        self._complete_scope(method)
        self._start_cycle()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._silent_bytes = 0
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """End the request; its answer may be out already."""
        self._silent_bytes = 0
        if self._plain_head is not None:
            return
        self._is_message_open = False
        self._stop_head_timer()
        self.cycle.more_body = False
        self.cycle.message_event.set()

    # What a cycle calls

    def on_response_complete(self) -> None:
        """Go on with the next request, the last words, or waiting."""
        self.server_state.total_requests += 1
        self._active = None
        if self._is_ending or self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._release_reading()
            self._start_asgi_task(cycle, app)
        elif self._last_words:
            self._say_last_words()
        else:
            self._release_reading()
            if self._is_idle():
                self._become_idle()

    def _is_last(self, cycle: Cycle) -> bool:
        return self._is_stopping and cycle is self.cycle and not self._is_head_open

    def _close_after_answer(self) -> None:
        """Close once the answer is out, in such a way that the client can read it."""
        if self._is_ending or self.transport.is_closing():
            return
        self._is_deaf = True
        self._is_ending = True
        self._stop_head_timer()
        if not (self._is_message_open or self._is_stopping):
            self._close()
            return
        self._release_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._close_timer = self.loop.call_later(LINGER_S, self._close)

    # Inside

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                head, self._plain_head = self._plain_head or b"", None
                self.parser = self._new_parser()
                data = head + rest
            else:
                return

    def _head_without_upgrade(self, method: bytes) -> bytes:
        version = self.parser.get_http_version().encode("ascii")
        lines = [method + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(t for t in tokens if t.lower() not in _UPGRADE_HEADERS)
            if name not in _UPGRADE_HEADERS and (kept or not value):
                lines.append(name + b": " + kept)
        return b"\r\n".join((*lines, b"", b""))

    def _count_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self.limits.max_header_bytes:
            raise _Refused(self._head_too_large())

    def _head_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request head: larger than max_header_bytes {self.limits.max_header_bytes}"
        )

    def _complete_scope(self, method: bytes) -> None:
        http_version = self.parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        self.scope["method"] = method.decode("ascii")
        self.scope["http_version"] = http_version
        self.scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.scope["raw_path"] = url.path
        self.scope["query_string"] = url.query or b""

    def _start_cycle(self) -> None:
        http_version = self.scope["http_version"]
        cycle = Cycle(
            is_last=self._is_last,
            scope=self.scope,
            transport=AnswerTransport(self.transport, self._close_after_answer),
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.cycle = cycle
        if self._active is None and not self.pipeline:
            self._start_asgi_task(cycle, self.app)
            return
        self.flow.pause_reading()
        self._flow.is_held = True
        self.pipeline.appendleft((cycle, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle  # type: ignore[assignment]  # only _start_cycle makes cycles
        super()._start_asgi_task(cycle, app)

    def _release_reading(self) -> None:
        if self._is_deaf or not self.pipeline:
            self._flow.is_held = False
            self._flow.resume_reading()

    def _is_idle(self) -> bool:
        return self._active is None and not self.pipeline and not self._is_message_open

    def _become_idle(self) -> None:
        wait_s = STOP_GRACE_S if self._is_stopping else self.limits.keep_alive_s
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(wait_s, self._close)

    def _refuse(self, error: Exception) -> None:
        """Answer what is no request, after the answers that are due before it, and close."""
        self._stop_head_timer()
        if self.limits.on_refused is not None:
            self.limits.on_refused(error)
        self._last_words = self._answer_to(error)
        self._is_deaf = True
        is_in_body = self._is_message_open and not self._is_head_open
        if is_in_body and self._active is self.cycle:
            self._active = None
            has_answered = self.cycle.response_started
            self._leave(self.cycle)
            if has_answered:
                self._close()
                return
        elif is_in_body and self.pipeline:
            self.pipeline.popleft()
        if self._active is None and not self.pipeline:
            self._say_last_words()

    def _say_last_words(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._last_words)
            self._is_message_open = True
            self._close_after_answer()

    def _answer_to(self, error: Exception) -> bytes:
        body = error_body(message_of(error))
        headers = [
            *self.server_state.default_headers,
            JSON_TYPE,
            (b"content-length", str(len(body)).encode("ascii")),
            (REQUEST_ID, request_id_of(self.headers or ()).encode("ascii")),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        return STATUS_LINE[status_of(error)] + lines + b"\r\n" + body

    def _leave(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(
                self.limits.header_timeout_s, self._on_head_timeout
            )

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._is_head_open:
            limit = f"header_timeout_s {self.limits.header_timeout_s:g}"
            self._refuse(RequestTooSlow(f"request head: not complete within {limit}"))
        elif self._is_idle():
            # Nothing was ever sent, or only line ends: there is no request to answer.
            self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self._is_deaf = True
            self.transport.close()
            self._watch_writing()

    def _watch_writing(self) -> None:
        if self._stall_timer is None:
            self._unflushed_bytes = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(self.limits.write_timeout_s, self._on_stall)

    def _on_stall(self) -> None:
        """Cut the connection of a peer that took nothing since the last look."""
        self._stall_timer = None
        if self.transport.get_write_buffer_size() >= self._unflushed_bytes:
            self.transport.abort()
        else:
            self._watch_writing()


def _reason_of(error: httptools.HttpParserError) -> Exception:
    """Return what a callback of ours refused, or the parser's own words."""
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause.error
    return InvalidInput(f"request: not valid HTTP: {cause or error}")

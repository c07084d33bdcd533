"""The requests of a connection, from its bytes: one parser, bounds of the head, offers to upgrade.

What is no request is told as an error; who answers a request, and when, is the subclass's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from registry.errors import InvalidInput
from registry.ident import shown
from serving.errors import HeadersTooLarge, MethodNotAllowed
from serving.web import head
from serving.web.exchange import Exchange

_log = logging.getLogger(__name__)
# Spaces, version and line ends of the request line; separators of a header line.
_LINE_BYTES: Final = 16
_HEADER_BYTES: Final = 4
_NOTED_HEADERS: Final = frozenset({b"host", b"connection", b"expect", b"transfer-encoding"})


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


class RequestParser(HttpToolsProtocol):
    """Takes a connection's bytes and makes an ``Exchange`` of each request in them.

    A subclass says what opens a request, lets it in, and takes what is no request.
    """

    limits: ClassVar[HttpLimits] = HttpLimits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._newest: Exchange | None = None
        self._plain_head: bytes | None = None
        self._is_message_open = False
        self._is_head_open = False
        # Deaf: what comes is thrown away.
        self._is_deaf = False
        # Bytes are being parsed; so many requests began in them.
        self.is_feeding = False
        self._begun = 0
        self._is_body_due = False
        self._hosts = 0
        self._has_connection = False
        self._codings: list[bytes] = []
        self._head_bytes = 0
        self._max_head_bytes = self.limits.max_header_bytes
        # Bytes since the parser last gave anything away: an endless header line, or trailer.
        self._silent_bytes = 0

    # What a subclass says

    def _open(self, method: bytes, *, keep_alive: bool) -> Exchange:
        """Return what answers the request whose head is complete."""
        raise NotImplementedError

    def _admit(self, exchange: Exchange) -> None:
        """Start a request, or let it wait its turn."""
        raise NotImplementedError

    def _body_came(self) -> None:
        """Forget the deadline of the newest request's body."""
        raise NotImplementedError

    def _parsed(self, error: Exception | None) -> None:
        """Go on after a packet; ``error``: why the rest of the connection is no request."""
        raise NotImplementedError

    # What event loop and parser call

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is no request is answered and ends the connection."""
        if self._is_deaf:
            return
        self._silent_bytes += len(data)
        self._begun = 0
        self.is_feeding = True
        error: Exception | None = None
        offered_until = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            offered_until = upgrade.args[0]
        except httptools.HttpParserError as refused:
            error = _reason_of(refused)
        if offered_until:
            error = self._feed_again(data[offered_until:])
        self.is_feeding = False
        if self._silent_bytes > self._max_head_bytes and error is None:
            error = self._head_too_large()
        self._parsed(error)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._is_deaf:
            raise _Refused(InvalidInput("request: it came after the last one"))
        self._begun += 1
        self._is_message_open = True
        self._is_head_open = True
        self._head_bytes = _LINE_BYTES
        self._hosts = 0
        self._has_connection = False
        self._codings = []
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request target."""
        self._head_bytes += len(url)
        if self._head_bytes > self._max_head_bytes:
            raise _Refused(self._head_too_large())
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line."""
        self._head_bytes += len(name) + len(value) + _HEADER_BYTES
        if self._head_bytes > self._max_head_bytes:
            raise _Refused(self._head_too_large())
        # A trailer is not part of what the request said before its body.
        if not self._is_head_open:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _NOTED_HEADERS:
            if name == b"host":
                self._hosts += 1
            elif name == b"connection":
                self._has_connection = True
            elif name == b"transfer-encoding":
                self._codings.append(value)
            elif value.lower() == b"100-continue":
                self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        """Open the request."""
        self._silent_bytes = 0
        parser = self.parser
        method = parser.get_method()
        if method == b"CONNECT":
            raise _Refused(MethodNotAllowed("method CONNECT is not allowed: this is no proxy"))
        if self._hosts != 1:
            self._check_hosts()
        if self._codings:
            self._check_codings()
        if parser.should_upgrade():
            # The parser takes what follows for another protocol; it is fed again without the offer.
            version = parser.get_http_version()
            self._plain_head = head.without_upgrade(method, self.url, version, self.headers)
            return
        keep_alive = parser.should_keep_alive()
        # Asking for the version costs more than all else here. Where no Connection header is, the
        # parser's word says the same; where one is, HTTP/1.0 has no keep-alive here all the same.
        if self._has_connection and keep_alive:
            keep_alive = parser.get_http_version() != "1.0"
        exchange = self._open(method, keep_alive=keep_alive)
        self._newest = exchange
        self._is_head_open = False
        self._admit(exchange)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._silent_bytes = 0
        if self._newest is not None:
            self._newest.take(body)

    def on_message_complete(self) -> None:
        """End the request; its answer may be out already."""
        self._silent_bytes = 0
        if self._plain_head is not None or self._newest is None:
            return
        self._is_message_open = False
        if self._is_body_due:
            self._body_came()
        self._newest.complete()

    # Inside

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed_again(self, rest: bytes) -> Exception | None:
        """Parse a request again without its offer to upgrade, and what follows it."""
        while True:
            plain_head, self._plain_head = self._plain_head or b"", None
            self.parser = self._new_parser()
            data = plain_head + rest
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as refused:
                return _reason_of(refused)
            return None

    def _check_hosts(self) -> None:
        if self._hosts:
            raise _Refused(InvalidInput("request: the header Host stands twice"))
        if self.parser.get_http_version() != "1.0":
            raise _Refused(InvalidInput("request: the header Host is missing: HTTP/1.1 needs it"))

    def _check_codings(self) -> None:
        """Refuse what a proxy in front may have framed otherwise (RFC 9112, section 6.1)."""
        coding = b", ".join(self._codings)
        if coding.lower() != b"chunked":
            said = shown(coding.decode("latin-1"))
            raise _Refused(
                InvalidInput(f"request: transfer-encoding {said} is not supported: use chunked")
            )
        if self.parser.get_http_version() == "1.0":
            raise _Refused(InvalidInput("request: HTTP/1.0 has no transfer-encoding"))

    def _head_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"request head: larger than max_header_bytes {self.limits.max_header_bytes}"
        )


def _reason_of(error: httptools.HttpParserError) -> Exception:
    """Return what a callback of ours refused, or the parser's own words."""
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause.error
    if cause is None or isinstance(cause, httptools.HttpParserError | UnicodeDecodeError):
        return InvalidInput(f"request: not valid HTTP: {cause or error}")
    return fault_of(cause)


def fault_of(cause: BaseException) -> Exception:
    """Log a fault of ours; return what is answered: a 500 that tells nothing of it."""
    _log.error("unplanned error", exc_info=cause)
    return Exception(str(cause))

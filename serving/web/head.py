"""Heads of requests and answers as bytes: what is taken out of one, how one is written."""

from __future__ import annotations

import urllib.parse
from typing import Final

import httptools
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.web.errors import Headers

_UPGRADE_HEADERS: Final = (b"upgrade", b"http2-settings")
_LINE: Final = b": ".join
KEPT_END: Final = b"content-length: %d\r\n\r\n"
CLOSED_END: Final = b"content-length: %d\r\nconnection: close\r\n\r\n"


def split_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Return the decoded path, the path as it came, and the query string of a request target.

    Raises httptools.HttpParserInvalidURLError or UnicodeDecodeError for what is none.
    """
    url = httptools.parse_url(target)
    # "http://host?query" names no path, which means the root.
    raw_path = url.path or b"/"
    path = raw_path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, raw_path, url.query or b""


def scope_of(connection: HttpToolsProtocol, method: bytes) -> HTTPScope:
    """Return what the application learns of the request whose head a connection has parsed."""
    path, raw_path, query = split_target(connection.url)
    return {
        "type": "http",
        "asgi": {"version": connection.asgi_version, "spec_version": "2.3"},
        "http_version": connection.parser.get_http_version(),
        "server": connection.server,
        "client": connection.client,
        "scheme": connection.scheme or "http",
        "method": method.decode("ascii"),
        "root_path": connection.root_path,
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": connection.headers,
        "state": connection.app_state.copy(),
    }


def without_upgrade(method: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    """Return a request's head without the offer to speak another protocol."""
    lines = [method + b" " + target + b" HTTP/" + version.encode("ascii")]
    for name, value in headers:
        kept = value
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            kept = b", ".join(t for t in tokens if t.lower() not in _UPGRADE_HEADERS)
        if name not in _UPGRADE_HEADERS and (kept or not value):
            lines.append(name + b": " + kept)
    return b"\r\n".join((*lines, b"", b""))


class AnswerHeads:
    """Writes heads of answers; what they begin with is put together once a second."""

    def __init__(self) -> None:
        self._defaults: Headers | None = None
        self._begins: dict[int, bytes] = {}
        self._usual: dict[bytes, tuple[bytes, bytes]] = {}

    def head(
        self, status: int, defaults: Headers, headers: Headers, length: int, is_kept: bool
    ) -> bytes:
        """Return the head of an answer with a body of ``length`` bytes.

        ``defaults``: what stands on every answer, such as the date: a new list when it changes.
        """
        begin = self._begin(status, defaults)
        end = KEPT_END if is_kept else CLOSED_END
        return b"\r\n".join([begin, *map(_LINE, headers), end % length])

    def usual(self, defaults: Headers, lines: bytes) -> tuple[bytes, bytes]:
        """Return the head of a 200 with ``lines`` in two parts, around the value of x-request-id.

        The content-length and what ends the head follow on the second.
        """
        if defaults is self._defaults and (parts := self._usual.get(lines)):
            return parts
        begin = self._begin(200, defaults)
        first, line_end, rest = lines.partition(b"\r\n")
        parts = (
            b"%b\r\n%b\r\nx-request-id: " % (begin, first),
            line_end + rest,
        )
        self._usual[lines] = parts
        return parts

    def _begin(self, status: int, defaults: Headers) -> bytes:
        if defaults is not self._defaults:
            self._defaults = defaults
            self._begins = {}
            self._usual = {}
        begin = self._begins.get(status)
        if begin is None:
            begin = STATUS_LINE[status] + b"".join([_LINE(line) + b"\r\n" for line in defaults])
            begin = self._begins[status] = begin.removesuffix(b"\r\n")
        return begin

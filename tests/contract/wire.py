"""What the contract tests share: the check that each error has to pass, and plain sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx

from tests.process.server import ROOT, RunningServer

TIMEOUT_S = 30.0
REQUEST_ID = "contract-42"
VERSION_HEADERS = ("x-ramrack-version", "x-ramrack-digest")
# What an answer must never carry: a traceback, a source file, a folder of the machine.
_LEAK = re.compile(
    r'Traceback|\.py\b|\.cc\b|", line \d+|0x[0-9a-f]{6,}|/(?:tmp|home|usr|proc|root)/'
)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer as it came over a plain socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Connection:
    """A plain socket and one buffered reader of it."""

    socket: socket.socket
    stream: BinaryIO

    def sendall(self, data: bytes) -> None:
        self.socket.sendall(data)


@contextlib.contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Give a connection to the host and port of ``url``."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with (
        socket.create_connection((parts.hostname, parts.port or 80), TIMEOUT_S) as client,
        client.makefile("rb") as stream,
    ):
        yield Connection(client, stream)


def read_answer(stream: BinaryIO, *, has_body: bool = True) -> Answer:
    """Read exactly one answer, so that what follows on the connection stays unread."""
    status_line = stream.readline()
    assert status_line.startswith(b"HTTP/1."), status_line
    headers: dict[str, str] = {}
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        assert name.lower() not in headers, f"header {name} stands twice"
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers["content-length"])) if has_body else b""
    return Answer(int(status_line.split()[1]), headers, body)


def head_of(method: str, path: str, headers: Mapping[str, str], *, http: str = "1.1") -> bytes:
    """Return a request head."""
    lines = [f"{method} {path} HTTP/{http}", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def check_error(
    response: httpx.Response | Answer,
    status: int,
    *words: str,
    server: RunningServer,
    version: int | None = None,
    request_id: str | None = REQUEST_ID,
) -> dict[str, Any]:
    """Hold an error to the one form of all errors; return its JSON.

    ``words``: what the message must name. ``version``: the one that was resolved, None for none.
    ``request_id``: the one that was sent, None where the server makes one.
    """
    status_code = response.status if isinstance(response, Answer) else response.status_code
    assert status_code == status, response.text
    document: dict[str, Any] = response.json()
    message = document["error"]
    assert isinstance(message, str)
    assert message
    for word in words:
        assert word in message, message
    headers = response.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    assert request_id is None or headers["x-request-id"] == request_id
    text = response.text + str(dict(headers))
    assert not _LEAK.search(text), text
    assert str(server.store) not in text
    assert str(ROOT) not in text
    if version is None:
        assert not any(name in headers for name in VERSION_HEADERS), headers
    else:
        assert headers["x-ramrack-version"] == str(version)
        assert headers["x-ramrack-digest"].startswith("sha256:")
    return document

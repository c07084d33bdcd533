"""One keep-alive HTTP/1.1 connection that is cheap enough not to be what is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

_MAX_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``headers`` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """Posts one body after another to one path; a broken connection raises OSError."""

    def __init__(self, url: str, headers: Sequence[str] = ()) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{url!r}: only http:// addresses are measured")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._path = parts.path or "/"
        if not any(header.lower().startswith("content-type:") for header in headers):
            headers = (*headers, "content-type: application/json")
        self._headers = "".join(f"{header}\r\n" for header in headers)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, limit=_MAX_HEAD_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    async def post(self, body: bytes, timeout_s: float) -> Reply:
        """Send ``body`` and return the answer."""
        async with asyncio.timeout(timeout_s):
            return await self._post(body)

    async def _post(self, body: bytes) -> Reply:
        if self._reader is None or self._writer is None:
            raise ConnectionError("the connection is not open")
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"{self._headers}content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(_header(line) for line in lines[1:] if line)
            length = int(headers["content-length"])
            return Reply(int(lines[0].split()[1]), headers, await self._reader.readexactly(length))
        except (EOFError, KeyError, ValueError, IndexError) as error:
            raise ConnectionError(f"no whole answer came: {error!r}") from error


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()

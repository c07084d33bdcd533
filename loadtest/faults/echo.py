"""Requests that nobody else sends, and whether an answer is the one to exactly that request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.exchange import Exchange

_MAX_LOW: Final = 1 << 16
_numbers = itertools.count(1)


@dataclass(slots=True)
class Sample(Exchange):
    """One request and how it ended. ``watched``: the version that answered.

    ``is_own``: the answer is this request's, whole, from the version that it claims.
    ``port`` and ``opened_ns``: the client's end of its connection, and when that was opened.
    """

    is_own: bool = True
    port: int = 0
    opened_ns: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A request with a row that no other request has."""

    row: tuple[float, ...]
    wire: bytes

    @classmethod
    def new(cls, path: str, headers: str = "") -> Question:
        """Return one for a path such as ``/v2/models/echo/infer``."""
        number = next(_numbers)
        # Two halves: float32 holds whole numbers up to 2 ** 24 only.
        row = (float(number % _MAX_LOW), float(number // _MAX_LOW), 0.5, -1.0)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}
        body = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: loopback\r\ncontent-type: application/json\r\n"
            f"{headers}content-length: {len(body)}\r\n\r\n"
        )
        return cls(row, head.encode("latin-1") + body)

    def is_answered_by(self, answer: Answer) -> bool:
        """Whether a 200 carries this row, and the mark of the version that its head names."""
        try:
            outputs = {each["name"]: each["data"] for each in json.loads(answer.body)["outputs"]}
        except (ValueError, KeyError, TypeError):
            return False
        mark = [float(answer.version)] if answer.version.isdigit() else None
        return outputs.get("y") == list(self.row) and outputs.get("version") == mark


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that came whole."""

    status: int
    version: str
    is_last: bool
    body: bytes


class Connection:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.port = int(writer.get_extra_info("sockname")[1])

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a port of the loopback address."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed it, as far as is known here."""
        return self._reader.at_eof() or self._writer.is_closing()

    def send(self, data: bytes) -> None:
        """Send without waiting: requests are small."""
        self._writer.write(data)

    async def answer(self) -> Answer:
        """Read one answer. Raises OSError or EOFError where none comes whole."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        body = await self._reader.readexactly(int(fields["content-length"]))
        return Answer(
            int(lines[0].split()[1]), fields.get("x-ramrack-version", ""),
            fields.get("connection") == "close", body,
        )  # fmt: skip

    async def end(self) -> bytes:
        """Read to the end of the connection. Raises OSError where it is reset."""
        return await self._reader.read()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def reset(self) -> None:
        """Hang up without a good-bye, as a process that dies with unread data does."""
        with contextlib.suppress(OSError):
            self._writer.transport.abort()


async def burst(port: int, paths: Sequence[str], count: int) -> None:
    """Ask each path ``count`` times, all at once; the answers do not matter."""

    async def one(path: str) -> None:
        connection = await Connection.open(port)
        connection.send(Question.new(path).wire)
        with contextlib.suppress(OSError, EOFError):
            await connection.answer()
        connection.close()

    await asyncio.gather(*(one(path) for _ in range(count) for path in paths))
    # A close is carried out by the loop after this one.
    await asyncio.sleep(0)

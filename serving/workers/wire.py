"""The wire between the parent and a worker: length-prefixed JSON frames over a socket pair.

A frame is four bytes of length (big-endian) and a JSON object ``{"type", "id", "body"}``. Nothing
but JSON crosses: a worker that a hostile model took over can send wrong numbers, never code.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from serving.errors import ServingError
from serving.web.inherit import copy_of

HEADER_BYTES: Final = 4
# A target names every tensor of every loaded version: a hundred thousand tensors are about 12 MB.
MAX_FRAME_BYTES: Final = 128 * 1024**2
READ_BYTES: Final = 256 * 1024
# What may wait for an end that does not read: far more than a worker says in an hour.
_POLL_S: Final = 0.01
MAX_UNSENT_BYTES: Final = 8 * 1024**2


class WireError(ServingError):
    """Bytes on the wire that no release of this server sends; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. ``id`` is unique for its sender; an answer carries the id of what it answers."""

    type: str
    id: int
    body: Mapping[str, Any]


def encode_frame(frame: Frame, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the bytes of a frame, or raise WireError if it is too large or not JSON."""
    try:
        payload = orjson.dumps({"type": frame.type, "id": frame.id, "body": frame.body})
    except TypeError as error:
        raise WireError(f"frame {frame.type!r} is not JSON: {error}") from error
    if len(payload) > max_bytes:
        raise WireError(f"frame {frame.type!r} has {len(payload)} bytes, at most {max_bytes}")
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts a byte stream into frames, however it was split on the way.

    After a WireError the stream has no known boundary any more: drop the decoder with it.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes and return every frame that is complete now."""
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= HEADER_BYTES:
            size = int.from_bytes(self._buffer[start : start + HEADER_BYTES], "big")
            if size > self._max_bytes:
                raise WireError(f"frame of {size} bytes announced, at most {self._max_bytes}")
            end = start + HEADER_BYTES + size
            if len(self._buffer) < end:
                break
            frames.append(_parse(bytes(self._buffer[start + HEADER_BYTES : end])))
            start = end
        del self._buffer[:start]
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)


def _parse(payload: bytes) -> Frame:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise WireError(f"frame is not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != {"type", "id", "body"}:
        raise WireError("frame is not an object of type, id and body")
    kind, number, body = document["type"], document["id"], document["body"]
    if not isinstance(kind, str) or type(number) is not int or not isinstance(body, dict):
        raise WireError("frame has a type, id or body of the wrong JSON type")
    return Frame(kind, number, body)


class Wire:
    """One end of the wire. One task may receive; any task may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._ids = itertools.count(1)

    @classmethod
    async def open(cls, sock: socket.socket) -> Wire:
        """Take over one end of a socket pair."""
        sock.setblocking(False)
        return cls(*await asyncio.open_connection(sock=sock, limit=READ_BYTES))

    @classmethod
    def around(cls, writer: asyncio.StreamWriter) -> Wire:
        """Return a wire that only sends; somebody else reads this end."""
        return cls(asyncio.StreamReader(), writer)

    async def leave(self) -> int:
        """Return a copy of this end for the next program in this process; nothing is half sent."""
        # The transport has no event for an empty buffer, and a worker reads all the time.
        while self._writer.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return copy_of(self._writer.get_extra_info("socket").fileno())

    async def send(self, type_: str, body: Mapping[str, Any], *, answers: int | None = None) -> int:
        """Send a frame and return its id; waits while the other end does not read.

        Raises ConnectionError when the other end is gone, WireError for a body that is not JSON.
        """
        if self._writer.transport.is_closing():
            # uvloop's own error for it is a RuntimeError.
            raise ConnectionResetError("the wire is closed")
        number = next(self._ids) if answers is None else answers
        self._writer.write(encode_frame(Frame(type_, number, body)))
        await self._writer.drain()
        return number

    def post(self, type_: str, body: Mapping[str, Any]) -> None:
        """Send a small frame without waiting; raises WireError if too much is unsent already.

        To an end that is gone nothing is sent: the receiving side learns of it and decides.
        """
        if self._writer.transport.is_closing():
            return
        unsent = self._writer.transport.get_write_buffer_size()
        if unsent > MAX_UNSENT_BYTES:
            raise WireError(f"{unsent} bytes unsent, at most {MAX_UNSENT_BYTES}: nobody reads")
        self._writer.write(encode_frame(Frame(type_, next(self._ids), body)))

    async def flush(self) -> None:
        """Wait until what was posted is on its way. Raises ConnectionError."""
        await self._writer.drain()

    async def receive(self) -> Frame | None:
        """Return the next frame, or None when the other end is gone. Raises WireError."""
        while not self._frames:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def close(self) -> None:
        """Close this end; the other one sees the end of the stream."""
        self._writer.close()

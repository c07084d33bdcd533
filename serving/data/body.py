"""Takes in a request's body under caps: its type, its size before and after decoding, its time.

All of it is refused as early as it can be known: a body that is announced too large is never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Final

from starlette.types import Receive

from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec.encoding import Decompressor, parse_content_encoding
from serving.errors import (
    Cancelled,
    PayloadTooLarge,
    QueueFull,
    RequestTooSlow,
    UnsupportedMedia,
)
from serving.settings import Settings

# What all bodies together may hold, in bodies of the largest size.
LARGEST_BODIES_AT_ONCE: Final = 8
# A compressed piece up to this size unfolds to 4 MiB at most: milliseconds.
_INLINE_DECODE_BYTES: Final = 4 * 1024
# Types that clients send with JSON or tensors in the body: curl -d says form, fetch says text.
_TYPES: Final = frozenset(
    {
        "application/json",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "text/json",
        "text/plain",
    }
)


class BodyReader:
    """Takes in bodies for one worker. The bytes of all of them together are bounded.

    Without that bound a few hundred callers with bodies of the allowed size would take all memory.
    ``held_bytes`` of at most ``budget_bytes`` are held now.
    """

    def __init__(self, settings: Settings) -> None:
        self.timeout_s = settings.body_timeout_s
        self.max_bytes = settings.max_body_bytes
        self.budget_bytes = LARGEST_BODIES_AT_ONCE * settings.max_body_bytes
        self.held_bytes = 0

    def open(self, headers: Iterable[tuple[bytes, bytes]], *, takes_csv: bool = False) -> Intake:
        """Return what takes in the body that ``headers`` announce; release it at the end.

        Raises UnsupportedMedia, or PayloadTooLarge for a length over the limit.
        """
        fields = dict(headers)
        if content_type := fields.get(b"content-type"):
            _check_type(content_type, takes_csv)
        length = fields.get(b"content-length")
        if length is not None and not (length.isdigit() and int(length) <= self.max_bytes):
            raise self._wrong_length(length)
        coding = fields.get(b"content-encoding")
        encoding = parse_content_encoding(coding.decode("latin-1")) if coding else "identity"
        return Intake(self, encoding)

    @asynccontextmanager
    async def read(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        receive: Receive,
        *,
        takes_csv: bool = False,
    ) -> AsyncIterator[bytes]:
        """Give the whole decoded body, and count it as held until the context ends.

        Raises what ``open`` and ``Intake`` do, RequestTooSlow, or Cancelled (the client left).
        """
        intake = self.open(headers, takes_csv=takes_csv)
        try:
            try:
                async with asyncio.timeout(self.timeout_s):
                    body = await _collected(receive, intake)
            except TimeoutError as error:
                raise self.too_slow() from error
            yield body
        finally:
            intake.release()

    def hold(self, more_bytes: int) -> None:
        """Count bytes as held until they are released; raises QueueFull where there is no room."""
        held_bytes = self.held_bytes + more_bytes
        if held_bytes > self.budget_bytes:
            raise self.full(more_bytes)
        self.held_bytes = held_bytes

    def release(self, held_bytes: int) -> None:
        """Count bytes as held no more."""
        self.held_bytes -= held_bytes

    def too_slow(self) -> RequestTooSlow:
        """Return what is said of a body that did not come in time."""
        return RequestTooSlow(f"body: not complete within body_timeout_s {self.timeout_s:g}")

    def full(self, more_bytes: int) -> QueueFull:
        """Return what is said where there is no room for more bytes."""
        return QueueFull(
            f"bodies of all requests: {self.held_bytes} of {self.budget_bytes} bytes "
            f"in this worker, no room for {more_bytes} more"
        )

    def _wrong_length(self, value: bytes) -> InvalidInput | PayloadTooLarge:
        if not value.isdigit():
            return InvalidInput(f"header content-length: {shown(value.decode('latin-1'))}")
        return PayloadTooLarge(f"body: {int(value)} bytes, at most {self.max_bytes} are allowed")


class Intake:
    """One body that comes in: ``take`` each piece, ``finish``.

    Where ``take`` says so, ``decode`` the piece in a thread and ``count`` it on the loop.
    """

    __slots__ = ("_decoder", "_held_bytes", "_pieces", "_reader", "_taken_bytes")

    def __init__(self, reader: BodyReader, encoding: str) -> None:
        self._reader = reader
        self._held_bytes = 0
        self._taken_bytes = 0
        self._pieces: list[bytes] = []
        is_plain = encoding == "identity"
        self._decoder = None if is_plain else Decompressor(encoding, reader.max_bytes)

    def take(self, piece: bytes) -> bool:
        """Take the next piece as it came; return False where it must still be decoded, in a thread.

        Raises QueueFull, PayloadTooLarge, or InvalidInput (broken compression).
        """
        self._hold(len(piece))
        self._taken_bytes += len(piece)
        if self._taken_bytes > self._reader.max_bytes:
            raise PayloadTooLarge(f"body: larger than {self._reader.max_bytes} bytes")
        if self._decoder is None:
            self._pieces.append(piece)
        elif len(piece) > _INLINE_DECODE_BYTES:
            return False
        else:
            self._decoder.feed(piece)
            self.count()
        return True

    def decode(self, piece: bytes) -> None:
        """Decode a piece that ``take`` left; raises PayloadTooLarge or InvalidInput.

        Any thread, while no other method is called.
        """
        if self._decoder is not None:
            self._decoder.feed(piece)

    def count(self) -> None:
        """Count what was decoded so far as held, in place of what it came as; raises QueueFull.

        At once, not at the end of the body: bodies that never end would hold what they unfolded to.
        """
        if self._decoder is not None:
            self._hold(self._decoder.size_bytes - self._held_bytes)

    def finish(self) -> bytes:
        """Return the whole decoded body; raises InvalidInput where it is cut off."""
        if self._decoder is None:
            pieces = self._pieces
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._decoder.finish()

    def release(self) -> None:
        """Count the body as held no more; again is harmless."""
        self._reader.release(self._held_bytes)
        self._held_bytes = 0

    def _hold(self, more_bytes: int) -> None:
        self._reader.hold(more_bytes)
        self._held_bytes += more_bytes


async def _collected(receive: Receive, intake: Intake) -> bytes:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client left before its request was complete")
        piece = message.get("body", b"")
        if not intake.take(piece):
            await asyncio.to_thread(intake.decode, piece)
            intake.count()
        if not message.get("more_body", False):
            return intake.finish()


@lru_cache(256)
def _check_type(header: bytes, takes_csv: bool) -> None:
    value = header.decode("latin-1")
    name, *parameters = (part.strip() for part in value.lower().split(";"))
    is_known = name in _TYPES or (takes_csv and name == "text/csv")
    if name and not is_known and not name.endswith("+json"):
        raise UnsupportedMedia(
            f"content-type {shown(value)} is not supported: use application/json or "
            "application/octet-stream"
        )
    for parameter in parameters:
        key, _, text = parameter.partition("=")
        if key.strip() == "charset" and text.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMedia(f"content-type {shown(value)} is not supported: use utf-8")

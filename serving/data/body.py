"""Reads a request's body under caps: its type, its size before and after decoding, its time.

All of it is refused as early as it can be known: a body that is announced too large is never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
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
    """Reads bodies for one worker. The bytes of all of them together are bounded.

    Without that bound a few hundred callers with bodies of the allowed size would take all memory.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_bytes = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s
        self._budget_bytes = LARGEST_BODIES_AT_ONCE * settings.max_body_bytes
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that are held now."""
        return self._held_bytes

    @asynccontextmanager
    async def read(
        self, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> AsyncIterator[bytes]:
        """Give the whole decoded body, and count it as held until the context ends.

        Raises UnsupportedMedia, PayloadTooLarge, InvalidInput (broken compression), RequestTooSlow,
        QueueFull (too many bytes held), or Cancelled (the client left).
        """
        fields = dict(headers)
        _check_type(fields.get(b"content-type", b"").decode("latin-1"))
        encoding = parse_content_encoding(fields.get(b"content-encoding", b"").decode("latin-1"))
        self._check_length(fields.get(b"content-length"))
        held = _Held()
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    body = await self._collected(receive, encoding, held)
            except TimeoutError as error:
                raise RequestTooSlow(
                    f"body: not complete within body_timeout_s {self._timeout_s:g}"
                ) from error
            self._hold(held, len(body) - held.size_bytes)
            yield body
        finally:
            self._held_bytes -= held.size_bytes

    def _check_length(self, value: bytes | None) -> None:
        if value is None:
            return
        if not value.isdigit():
            raise InvalidInput(f"header content-length: {shown(value.decode('latin-1'))}")
        if int(value) > self._max_bytes:
            raise PayloadTooLarge(
                f"body: {int(value)} bytes, at most {self._max_bytes} are allowed"
            )

    async def _collected(self, receive: Receive, encoding: str, held: _Held) -> bytes:
        decoder = Decompressor(encoding, self._max_bytes)
        is_encoded = encoding != "identity"
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the client left before its request was complete")
            chunk = message.get("body", b"")
            self._hold(held, len(chunk))
            if held.size_bytes > self._max_bytes:
                raise PayloadTooLarge(f"body: larger than {self._max_bytes} bytes")
            if is_encoded and len(chunk) > _INLINE_DECODE_BYTES:
                await asyncio.to_thread(decoder.feed, chunk)
            else:
                decoder.feed(chunk)
            if not message.get("more_body", False):
                return decoder.finish()

    def _hold(self, held: _Held, more_bytes: int) -> None:
        if self._held_bytes + more_bytes > self._budget_bytes:
            raise QueueFull(
                f"bodies of all requests: {self._held_bytes} of {self._budget_bytes} bytes "
                f"in this worker, no room for {more_bytes} more"
            )
        held.size_bytes += more_bytes
        self._held_bytes += more_bytes


class _Held:
    """What one request holds of the budget."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


def _check_type(value: str) -> None:
    name, *parameters = (part.strip() for part in value.lower().split(";"))
    if name and name not in _TYPES and not name.endswith("+json"):
        raise UnsupportedMedia(
            f"content-type {shown(value)} is not supported: use application/json or "
            "application/octet-stream"
        )
    for parameter in parameters:
        key, _, text = parameter.partition("=")
        if key.strip() == "charset" and text.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMedia(f"content-type {shown(value)} is not supported: use utf-8")

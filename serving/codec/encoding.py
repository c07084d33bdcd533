"""Compressed bodies: gzip and deflate, streamed in with a cap on what comes out.

The cap counts decoded bytes, so a small body that unfolds into a huge one ends at the cap, whatever
its ratio. One encoding at a time; several in a row are refused.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from registry.errors import InvalidInput
from registry.ident import shown
from serving.errors import PayloadTooLarge, UnsupportedMedia

ENCODINGS: Final = ("gzip", "deflate")
# Below this the head of a gzip body eats what it saves.
MIN_BYTES: Final = 1024
# Members beyond this cost more time to set up than they carry; writers of blocks of 64 KiB (bgzip)
# stay far below it within a body of the default limit.
MAX_MEMBERS: Final = 4096
_LEVEL: Final = 1
_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15
_RAW_BITS: Final = -15


def parse_content_encoding(header: str | None) -> str:
    """Return ``identity``, ``gzip`` or ``deflate``, or raise UnsupportedMedia."""
    name = (header or "identity").strip().lower()
    if name in ("", "identity"):
        return "identity"
    if name == "x-gzip":
        return "gzip"
    if name not in ENCODINGS:
        raise UnsupportedMedia(
            f"content-encoding {shown(header)} is not supported: use gzip or deflate, one of them"
        )
    return name


class Decompressor:
    """Takes a body in pieces and gives it decoded; never holds more than the cap and a piece."""

    def __init__(self, encoding: str | None, limit_bytes: int) -> None:
        self._encoding = parse_content_encoding(encoding)
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._pieces: list[bytes] = []
        self._stream: zlib._Decompress | None = None
        self._head = b""
        self._members = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that were decoded so far."""
        return self._size_bytes

    def feed(self, chunk: bytes) -> None:
        """Take the next piece; raises PayloadTooLarge or InvalidInput as soon as it is known."""
        if not chunk:
            return
        if self._encoding == "identity":
            self._keep(chunk)
        elif self._encoding == "gzip":
            self._feed_gzip(chunk)
        else:
            self._feed_deflate(chunk)

    def finish(self) -> bytes:
        """Return the decoded body; raises InvalidInput where it is cut off."""
        is_open = self._stream is not None and not self._stream.eof
        if is_open or self._head or (self._encoding != "identity" and self._stream is None):
            raise InvalidInput(f"body: the {self._encoding} data is cut off")
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        return body

    def _feed_gzip(self, chunk: bytes) -> None:
        while chunk:
            if self._stream is None or self._stream.eof:
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise InvalidInput(f"body: more than {MAX_MEMBERS} gzip members")
                self._stream = zlib.decompressobj(_GZIP_BITS)
            chunk = self._inflate(self._stream, chunk)

    def _feed_deflate(self, chunk: bytes) -> None:
        if self._stream is None:
            # "deflate" means zlib by the standard and raw deflate by some clients: two bytes tell.
            self._head += chunk
            if len(self._head) < 2:
                return
            chunk, self._head = self._head, b""
            is_zlib = chunk[0] & 0x0F == 8 and (chunk[0] << 8 | chunk[1]) % 31 == 0
            self._stream = zlib.decompressobj(_ZLIB_BITS if is_zlib else _RAW_BITS)
        elif self._stream.eof:
            raise InvalidInput("body: bytes are left after the end of the deflate data")
        if self._inflate(self._stream, chunk):
            raise InvalidInput("body: bytes are left after the end of the deflate data")

    def _inflate(self, stream: zlib._Decompress, chunk: bytes) -> bytes:
        """Decode ``chunk`` and return what follows the end of this stream."""
        try:
            # One byte over what is left is enough to see that it is too much.
            self._keep(stream.decompress(chunk, self._limit_bytes - self._size_bytes + 1))
            while stream.unconsumed_tail:
                room = self._limit_bytes - self._size_bytes + 1
                self._keep(stream.decompress(stream.unconsumed_tail, room))
        except zlib.error as error:
            raise InvalidInput(f"body: not valid {self._encoding} data: {error}") from error
        return stream.unused_data

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._size_bytes += len(piece)
        if self._size_bytes > self._limit_bytes:
            self._pieces = []
            raise PayloadTooLarge(
                f"body: larger than {self._limit_bytes} bytes"
                + ("" if self._encoding == "identity" else " when decoded")
            )
        self._pieces.append(piece)


def choose_encoding(accept_encoding: str | None, body_bytes: int = MIN_BYTES) -> str | None:
    """Return how to compress an answer of ``body_bytes`` for a client, or None for not at all.

    Follows the q-values; gzip before deflate, and no compression where the client prefers that.
    """
    if not accept_encoding or body_bytes < MIN_BYTES:
        return None
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip().removeprefix("x-")] = _quality(parameter)
    rest = weights.get("*", 0.0)
    best = max(ENCODINGS, key=lambda name: weights.get(name, rest))
    weight = weights.get(best, rest)
    return best if weight > 0 and weight >= weights.get("identity", 0.0) else None


def compress(body: bytes, encoding: str) -> bytes:
    """Return ``body`` as ``gzip`` or ``deflate`` (zlib) bytes, at the fastest level."""
    if encoding == "gzip":
        return gzip.compress(body, compresslevel=_LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)


def _quality(parameter: str) -> float:
    key, _, value = parameter.partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        quality = float(value.strip())
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0

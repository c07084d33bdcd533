"""The form of a packed object: parts of the runtime's file, each at its own page of the object.

Knows no runtime: the child says what an object is made of, and the parent builds it from that.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from models.errors import LoadFailed
from registry.ident import check_digest
from registry.manifest import Json, JsonObject

# Mapped on its own, each part starts on a page of its own.
PAGE_BYTES: Final = mmap.PAGESIZE
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, from ``offset``, that stand in the object from ``start``."""

    start: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PackedObject:
    """An object that is to be built; ``digest`` is that of its bytes."""

    digest: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the object."""
        return end_of(self.parts)

    def chunks(self, descriptor: int) -> Iterator[bytes]:
        """Yield the object's bytes from the open file, see ``chunks_of``."""
        return chunks_of(descriptor, self.parts)

    def to_json(self) -> JsonObject:
        """Return the JSON form, from the child to the parent."""
        parts: list[Json] = [[p.start, p.offset, p.size_bytes] for p in self.parts]
        return {"digest": self.digest, "parts": parts}


def parse_packed_object(document: object) -> PackedObject:
    """Return a PackedObject from its JSON form, or raise LoadFailed on one that lies.

    Its bytes are compared with the digest when they are stored.
    """
    match document:
        case {"digest": str(digest), "parts": list(items)}:
            parts = tuple(Part(*map(int, item)) for item in items)
        case _:
            raise LoadFailed("the inspection process described no object")
    end = 0
    for part in parts:
        if part.start < end or part.offset < 0 or part.size_bytes < 0:
            raise LoadFailed(
                f"packed object {digest}: a part of {part.size_bytes} bytes cannot stand at "
                f"{part.start} behind byte {end}"
            )
        end = part.start + part.size_bytes
    return PackedObject(check_digest(digest), parts)


def end_of(parts: tuple[Part, ...]) -> int:
    """Return the bytes up to the end of the last part."""
    return parts[-1].start + parts[-1].size_bytes if parts else 0


def page_after(end: int) -> int:
    """Return the first page border at or after ``end``."""
    return -(-end // PAGE_BYTES) * PAGE_BYTES


def digest_of(descriptor: int, parts: tuple[Part, ...]) -> str:
    """Return the digest of the object that parts of an open file make."""
    hasher = hashlib.sha256()
    for chunk in chunks_of(descriptor, parts):
        hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()


def chunks_of(descriptor: int, parts: tuple[Part, ...]) -> Iterator[bytes]:
    """Yield the object's bytes: parts of an open file, with zeros up to where each starts.

    Raises LoadFailed where the file ends too early, as one does that a full disk cut short.
    """
    done = 0
    for part in parts:
        yield from _zeros(part.start - done)
        offset, end = part.offset, part.offset + part.size_bytes
        while offset < end:
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - offset), offset)
            if not chunk:
                raise LoadFailed("the file of packed weights is cut short")
            offset += len(chunk)
            yield chunk
        done = part.start + part.size_bytes


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _CHUNK_BYTES))
        count -= _CHUNK_BYTES

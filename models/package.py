"""A package: what a push sends, as a manifest and the objects it names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from registry.manifest import Manifest

CHUNK_BYTES: Final = 1 << 20
# Tensors from this size on become objects of their own; smaller ones stay inside the graph.
OBJECT_THRESHOLD_BYTES: Final = 64 * 1024


class ObjectSource(Protocol):
    """One object to upload; ``chunks`` may be called again, for a retry."""

    @property
    def digest(self) -> str:
        """``sha256:HEX`` of the whole object."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the whole object."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order, in pieces of about CHUNK_BYTES."""
        ...


@dataclass(frozen=True, slots=True)
class BytesObject:
    """An object held in memory."""

    data: bytes
    digest: str

    @classmethod
    def of(cls, data: bytes) -> BytesObject:
        """Return the object of ``data`` with its digest computed."""
        return cls(data, "sha256:" + hashlib.sha256(data).hexdigest())

    @property
    def size_bytes(self) -> int:
        """Size of the whole object."""
        return len(self.data)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order."""
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


@dataclass(frozen=True, slots=True)
class FileSlice:
    """An object that is a run of bytes of a local file, never held in memory as a whole."""

    path: Path
    offset: int
    size_bytes: int
    digest: str

    @classmethod
    def of(cls, path: Path, offset: int, size_bytes: int) -> FileSlice:
        """Return the slice with its digest computed by reading the file once."""
        hasher = hashlib.sha256()
        for chunk in _read(path, offset, size_bytes):
            hasher.update(chunk)
        return cls(path, offset, size_bytes, "sha256:" + hasher.hexdigest())

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order."""
        return _read(self.path, self.offset, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Package:
    """A manifest and every object that it names, each once."""

    manifest: Manifest
    objects: tuple[ObjectSource, ...]


def _read(path: Path, offset: int, size_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        left = size_bytes
        while left:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(f"{path.name} ended {left} bytes early")
            left -= len(chunk)
            yield chunk

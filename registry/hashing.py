"""Whether a file is the object that its name says, and how to see later that it still is."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.errors import Corrupt
from registry.files import disk_errors

_CHUNK_BYTES: Final = 1 << 20
# Without O_NONBLOCK a named pipe in the folder would block for ever.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file is touched: equal stamps, equal bytes."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file's status."""
    return Stamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def hash_object(path: Path, digest: str, hashed: Callable[[int], None]) -> Stamp:
    """Return the stamp of an object whose bytes are right, or raise Corrupt saying what is not.

    ``hashed`` is called with the count of each chunk. Frees the GIL while it hashes.
    """
    with disk_errors(f"read object {digest}"):
        descriptor = _open(path, digest)
        try:
            before = os.fstat(descriptor)
            _check_kind(before, digest)
            found, count = _hash(descriptor, digest, hashed)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    if found != digest:
        raise Corrupt(f"object {digest} is damaged: its {count} bytes hash to {found}")
    if stamp_of(after) != stamp_of(before):
        raise Corrupt(f"object {digest} changed while it was read")
    return stamp_of(after)


def _open(path: Path, digest: str) -> int:
    try:
        return os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise Corrupt(f"object {digest} is missing") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Corrupt(f"object {digest} is not a regular file") from error
        raise


def _check_kind(status: os.stat_result, digest: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Corrupt(f"object {digest} is not a regular file")
    if status.st_nlink > 1:
        raise Corrupt(
            f"object {digest} has {status.st_nlink} names (hard links): "
            "its bytes could change through another one"
        )


def _hash(descriptor: int, digest: str, hashed: Callable[[int], None]) -> tuple[str, int]:
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    total = 0
    try:
        while count := os.readv(descriptor, [buffer]):
            sha256.update(buffer[:count])
            total += count
            hashed(count)
    except OSError as error:
        if error.errno == errno.EIO:
            raise Corrupt(f"object {digest} cannot be read past byte {total}") from error
        raise
    return "sha256:" + sha256.hexdigest(), total

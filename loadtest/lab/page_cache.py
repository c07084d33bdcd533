"""The page cache: files taken out of it, and asked what of them is in there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_IS_CACHED: Final = bytes(number & 1 for number in range(256))


def drop(paths: Iterable[Path]) -> None:
    """Take files out of the page cache; what is mapped stays. Written pages are synced first."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the page cache, to the page."""
    size = path.stat().st_size
    if not size:
        return 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Python's own mmap does not tell its address unless it may be written to.
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address is None or address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if _libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        _libc.munmap(address, size)
    cached = sum(pages.raw.translate(_IS_CACHED)) * mmap.PAGESIZE
    return min(size, cached)

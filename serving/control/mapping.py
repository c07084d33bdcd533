"""One object of the store, mapped read-only by this process: its pages touched, counted, locked.

Nothing here reads through the mapping: a file that was cut short would end the process. The kernel
is asked instead, and answers with an error. All calls free the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from models.errors import LoadFailed, OutOfMemory
from registry.errors import Corrupt, StoreFailed

# What is done at once between two looks at whether the object is still wanted.
CHUNK_BYTES: Final = 8 << 20
# From linux/mman.h; Python's mmap does not name it. Kernels before 5.14 do not know it.
MADV_POPULATE_READ: Final = 22
_PAGE: Final = mmap.PAGESIZE
_IS_RESIDENT: Final = 1
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
# Not through a link, and a named pipe in the folder must not block.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class MappedObject:
    """A mapping of one object, worked on in pieces. Any thread; ``close`` may come in between.

    ``locked_bytes``: what the kernel promised to keep in RAM.
    """

    def __init__(self, path: Path, digest: str, size_bytes: int) -> None:
        """Map ``size_bytes`` from the start; raises Corrupt where the object has not so many."""
        self._path = path
        self.digest = digest
        self.size_bytes = size_bytes
        self.locked_bytes = 0
        self._lock = threading.Lock()
        self._address: int | None = None
        if size_bytes:
            self._address = self._map()

    def chunks(self) -> range:
        """Return where the pieces begin that ``touch`` takes."""
        return range(0, self.size_bytes, CHUNK_BYTES)

    def want(self, start: int) -> int:
        """Have a piece read that is soon to be touched; return how many bytes were not in RAM.

        One large read instead of one for every fault, and while it goes on the next can be asked
        for: the disk is never idle in between.
        """
        length = min(CHUNK_BYTES, self.size_bytes - start)
        with self._lock:
            if self._address is None:
                return 0
            missing = length - self._resident(self._address + start, length)
            if missing:
                _libc.madvise(self._address + start, length, mmap.MADV_WILLNEED)
        return missing

    def touch(self, start: int) -> None:
        """Return when a piece is in RAM, and mapped.

        Raises Corrupt where the file ends before it, or its disk cannot read it.
        """
        length = min(CHUNK_BYTES, self.size_bytes - start)
        with self._lock:
            if self._address is not None:
                self._populate(self._address, start, length)

    def want_rest(self) -> Iterator[int]:
        """Have read what lies behind the mapped bytes; yield the bytes asked for, by the piece.

        A load reads it once, and nothing keeps it in RAM. Where it cannot be, the load says so.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, _FLAGS)
            try:
                end = os.fstat(descriptor).st_size
                for start in range(self.size_bytes, end, CHUNK_BYTES):
                    length = min(CHUNK_BYTES, end - start)
                    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
                    yield length
            finally:
                os.close(descriptor)

    def count(self) -> int:
        """Return how many of its bytes are in RAM."""
        total = 0
        for start in range(0, self.size_bytes, CHUNK_BYTES * 16):
            length = min(CHUNK_BYTES * 16, self.size_bytes - start)
            with self._lock:
                if self._address is None:
                    return 0
                total += self._resident(self._address + start, length)
        return total

    def lock(self, start: int) -> str:
        """Have the kernel keep a piece that was touched; return why it does not, or nothing.

        Pieces are locked from the first one on; one that is locked already stays so. One at a
        time: the whole address space stands still while a piece is locked.
        """
        length = min(CHUNK_BYTES, self.size_bytes - start)
        with self._lock:
            if self._address is None or start < self.locked_bytes:
                return ""
            if _libc.mlock(self._address + start, length):
                return os.strerror(ctypes.get_errno())
            self.locked_bytes += length
            return ""

    def close(self) -> None:
        """Unmap it, which also unlocks it. A second call does nothing."""
        with self._lock:
            address, self._address = self._address, None
            self.locked_bytes = 0
            if address is not None:
                _libc.munmap(address, self.size_bytes)

    def _map(self) -> int:
        try:
            descriptor = os.open(self._path, _FLAGS)
        except FileNotFoundError as error:
            raise Corrupt(f"object {self.digest} is missing") from error
        except OSError as error:
            raise StoreFailed(f"object {self.digest} cannot be opened: {error.strerror}") from error
        try:
            found = os.fstat(descriptor).st_size
            if found < self.size_bytes:
                raise Corrupt(
                    f"object {self.digest} has {found} bytes instead of {self.size_bytes}"
                )
            address: int | None = _libc.mmap(
                None, self.size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0
            )
        finally:
            os.close(descriptor)
        if address is None or address == _MAP_FAILED:
            number = ctypes.get_errno()
            kind = OutOfMemory if number == errno.ENOMEM else LoadFailed
            raise kind(f"object {self.digest} cannot be mapped: {os.strerror(number)}")
        return address

    def _populate(self, address: int, start: int, length: int) -> None:
        if not _libc.madvise(address + start, length, MADV_POPULATE_READ):
            return
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            self._read(start, length)
        elif number == errno.ENOMEM:
            raise OutOfMemory(f"there is no memory to bring object {self.digest} into RAM")
        else:
            raise self._unreadable(start)

    def _read(self, start: int, length: int) -> None:
        """Do what an older kernel cannot: the page cache keeps what passes through the buffer."""
        buffer = memoryview(bytearray(length))
        try:
            descriptor = os.open(self._path, _FLAGS)
            try:
                done = 0
                while done < length:
                    count = os.preadv(descriptor, [buffer[done:]], start + done)
                    if not count:
                        raise self._unreadable(start)
                    done += count
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(start) from error

    def _unreadable(self, start: int) -> Corrupt:
        return Corrupt(
            f"object {self.digest} cannot be read past byte {start}: "
            "it was cut short, or the disk fails"
        )

    def _resident(self, address: int, length: int) -> int:
        """Return how many bytes of a piece, which begins at a page, are in RAM."""
        pages = -(-length // _PAGE)
        vector = np.zeros(pages, np.uint8)
        if _libc.mincore(address, length, vector.ctypes.data):
            return 0
        present = int(np.count_nonzero(vector & _IS_RESIDENT)) * _PAGE
        return min(present, length)

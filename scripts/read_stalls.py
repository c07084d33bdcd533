"""How long a read in one thread keeps another from their core: scripts/read_stalls.py.

A kernel that does not interrupt itself copies a whole batch of pages before it lets anybody else
run, whatever the priorities. This reads a cached file in pieces of several sizes while a second
thread on the same core sleeps a millisecond at a time, and prints how late that woke. Figures are
milliseconds; on a busy machine other processes add to them, so compare with the line ``nothing``.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from models.priority import step_back_thread

_SLEEP_S: Final = 0.001
_PIECES: Final = (64 << 20, 16 << 20, 4 << 20, 1 << 20, 256 << 10)


class Ticker:
    """Counts how late a thread wakes, until ``stop``."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._tick, name="ticker")
        self._thread.start()

    def stop(self) -> list[float]:
        """Return the lateness of each wake in ms, the worst one last."""
        self._is_over = True
        self._thread.join()
        return sorted(self._late_ms)

    def _tick(self) -> None:
        while not self._is_over:
            start_s = time.monotonic()
            time.sleep(_SLEEP_S)
            self._late_ms.append((time.monotonic() - start_s - _SLEEP_S) * 1e3)


def measure(title: str, work: Callable[[], object], rounds: int) -> None:
    """Print the lateness beside ``rounds`` calls of ``work`` in a thread that steps back."""

    def beside() -> None:
        step_back_thread()
        for _ in range(rounds):
            work()

    ticker, reader = Ticker(), threading.Thread(target=beside, name="reader")
    start_s = time.monotonic()
    reader.start()
    reader.join()
    took_ms = (time.monotonic() - start_s) * 1e3 / rounds
    late_ms = ticker.stop()
    print(
        f"{title:<34} {took_ms:8.1f} ms each, {len(late_ms):>6} wakes, "
        f"p99 {late_ms[int(len(late_ms) * 0.99)]:6.2f}, worst {late_ms[-1]:6.2f}",
        flush=True,
    )


def bring_from_disk(descriptor: int, size_bytes: int) -> None:
    """Have a file cached as one is that was read, in large pieces; how it was written differs."""
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for start in range(0, size_bytes, _PIECES[-1]):
        os.pread(descriptor, _PIECES[-1], start)


def read_new(descriptor: int, size_bytes: int, piece_bytes: int) -> None:
    """Read a file into memory that nobody has touched yet."""
    with mmap.mmap(-1, size_bytes) as memory, memoryview(memory) as view:
        for start in range(0, size_bytes, piece_bytes):
            os.preadv(descriptor, [view[start : start + piece_bytes]], start)


def read_again(descriptor: int, view: memoryview, piece_bytes: int) -> None:
    """Read a file into memory that was used before."""
    for start in range(0, len(view), piece_bytes):
        os.preadv(descriptor, [view[start : start + piece_bytes]], start)


def read_mapped(descriptor: int) -> None:
    """Read one byte of each page where the file is mapped."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
        mapped[:: mmap.PAGESIZE]


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=240, help="size of the file (default 240)")
    parser.add_argument("--rounds", type=int, default=6, help="reads of each kind (default 6)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    options = parser.parse_args(argv)
    os.sched_setaffinity(0, {options.core})
    size_bytes = options.mib << 20
    print(f"kernel {os.uname().release} {os.uname().version}, core {options.core}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(bytes(size_bytes))
        descriptor = os.open(path, os.O_RDONLY)
        bring_from_disk(descriptor, size_bytes)
        used = memoryview(bytearray(size_bytes))
        measure("nothing", lambda: time.sleep(0.2), options.rounds)
        for size in (size_bytes, *_PIECES):
            measure(f"{size >> 10} KiB at once, new memory",
                    lambda size=size: read_new(descriptor, size_bytes, size),  # type: ignore[misc]
                    options.rounds)  # fmt: skip
        for size in (size_bytes, *_PIECES):
            measure(f"{size >> 10} KiB at once, used memory",
                    lambda size=size: read_again(descriptor, used, size),  # type: ignore[misc]
                    options.rounds)  # fmt: skip
        measure("mapped, each page read", lambda: read_mapped(descriptor), 50 * options.rounds)
        os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What this process holds in memory, and how it gives back what it no longer uses.

PSS and anonymous bytes tell the truth; the resident size counts shared weights once per process.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
ROLLUP: Final = Path("/proc/self/smaps_rollup")


def anonymous_bytes() -> int:
    """Return the bytes that are this process's own: heap and stacks. Costs microseconds."""
    return _field(STATUS, "RssAnon:")


def proportional_bytes() -> int:
    """Return the proportional set size: shared pages count by their share.

    The kernel walks all pages for it: milliseconds for each gigabyte. Not for the event loop.
    """
    return _field(ROLLUP, "Pss:")


def trim() -> None:
    """Give freed heap memory back to the system; glibc keeps it otherwise."""
    _malloc_trim()(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int]:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # a C library that is not glibc
        return lambda _pad: 0
    function.argtypes = [ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function


def _field(path: Path, name: str) -> int:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0

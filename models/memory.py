"""Memory of this process: what it holds for itself, and how to give freed memory back."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from pathlib import Path
from typing import Final

_SMAPS_ROLLUP: Final = Path("/proc/self/smaps_rollup")
_STATUS: Final = "/proc/{pid}/status"


def trim() -> None:
    """Give freed heap memory back to the system; does nothing where the C library cannot.

    A tree ensemble that was loaded or dropped leaves gigabytes in malloc's free lists. They would
    count against the budget until something else happened to reuse them.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process: what no mapped file backs."""
    for line in _SMAPS_ROLLUP.read_text().splitlines():
        if line.startswith("Anonymous:"):
            return _kib(line)
    return 0


def resident_anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of another process by a cheap counter; 0 once it has ended."""
    return _status_bytes(pid, "RssAnon:")


def private_writable_bytes(pid: int) -> int:
    """Return what RLIMIT_DATA counts for a process; 0 once it has ended."""
    return _status_bytes(pid, "VmData:")


def mapped_bytes(pid: int, names: Collection[str]) -> int:
    """Return what a process holds of mapped files with such names, a shared page by its share.

    0 once it has ended. Raises PermissionError where the kernel does not let us look.
    """
    try:
        # Cheap, and nearly always enough: the sizes need a walk over all pages.
        if not any(_file_name(line) in names for line in _lines(pid, "maps")):
            return 0
        found, is_ours = 0, False
        for line in _lines(pid, "smaps"):
            if line.startswith("Pss:"):
                found += _kib(line) if is_ours else 0
            elif "-" in line.partition(" ")[0]:
                is_ours = _file_name(line) in names
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return found


def _lines(pid: int, file: str) -> list[str]:
    return Path(f"/proc/{pid}/{file}").read_text(errors="replace").splitlines()


def _file_name(line: str) -> str:
    """Return the last part of the path in a line of maps; a file that was unlinked has it, too."""
    return line.rpartition("/")[2].removesuffix(" (deleted)")


def _status_bytes(pid: int, field: str) -> int:
    try:
        text = Path(_STATUS.format(pid=pid)).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith(field):
            return _kib(line)
    return 0  # a zombie has no memory fields


def _kib(line: str) -> int:
    return int(line.split()[1]) * 1024

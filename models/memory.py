"""Memory of this process: what it holds for itself, and how to give freed memory back."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SMAPS_ROLLUP: Final = Path("/proc/self/smaps_rollup")
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LEAST_KEPT_BYTES: Final = 128 << 10
_MOST_UNMAPPED_BYTES: Final = 32 << 20
_STATUS: Final = "/proc/{pid}/status"


def trim() -> None:
    """Give freed heap memory back to the system; does nothing where the C library cannot.

    A tree ensemble that was loaded or dropped leaves gigabytes in malloc's free lists. They would
    count against the budget until something else happened to reuse them.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def trim_end_of_arena() -> None:
    """Give back what is free at the end of this thread's arena, which ``trim`` leaves as it is.

    The allocator looks there when a large piece beside it is freed, and keeps less than its
    threshold. Once that was set it is no longer adapted, nor is the size from which pieces are
    mapped; so both are set to the most that they adapt to, where one large load takes them anyway.
    Not for a process that loaded nothing large: it would keep more from then on.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.mallopt(_M_MMAP_THRESHOLD, _MOST_UNMAPPED_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _LEAST_KEPT_BYTES)
    try:
        libc.free(libc.malloc(_MOST_UNMAPPED_BYTES // 2))
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MOST_UNMAPPED_BYTES)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process: what no mapped file backs."""
    for line in _SMAPS_ROLLUP.read_text().splitlines():
        if line.startswith("Anonymous:"):
            return _kib(line)
    return 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What RLIMIT_DATA counts of a process, what is resident, and what of that no file backs."""

    data_bytes: int
    resident_bytes: int
    anonymous_bytes: int


def process_memory(pid: int) -> ProcessMemory | None:
    """Return what another process holds; None once it has ended."""
    found = _status(pid)
    if "RssAnon:" not in found:
        return None
    return ProcessMemory(found["VmData:"], found["VmRSS:"], found["RssAnon:"])


def resident_anonymous_bytes(pid: int) -> int:
    """Return what a process has in RAM that no file backs; 0 once it has ended."""
    return _status(pid).get("RssAnon:", 0)


def private_writable_bytes(pid: int) -> int:
    """Return what RLIMIT_DATA counts for a process; 0 once it has ended."""
    return _status(pid).get("VmData:", 0)


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


def _status(pid: int) -> dict[str, int]:
    """Return the memory fields of a process, in bytes; a zombie has none."""
    try:
        text = Path(_STATUS.format(pid=pid)).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {
        line.partition("\t")[0]: _kib(line)
        for line in text.splitlines()
        if line.startswith(("Vm", "Rss"))
    }


def _kib(line: str) -> int:
    return int(line.split()[1]) * 1024

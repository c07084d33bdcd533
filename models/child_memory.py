"""What a child was seen to hold, and whether a lack of memory is what ended it.

Native code that gets no memory often uses the pointer all the same. The signal of that crash is all
that is left then, and whoever reads it looks for a fault in the model.
"""

from __future__ import annotations

import resource
import signal
from contextlib import suppress
from typing import Final

from models.memory import process_memory

# Signals of code that did not look whether it got memory, or gave up because it got none.
CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
# Of what it may take: what is asked for last may be this large and not be had.
_NEAR_SHARE: Final = 0.25


class ChildMemory:
    """Looks at one child, again and again; for the thread that watches it.

    ``file_bytes``: how much of what it maps from files may become resident.
    """

    def __init__(self, pid: int, file_bytes: int) -> None:
        self._pid = pid
        self._file_bytes = file_bytes
        self._limit_bytes = resource.RLIM_INFINITY
        self._data_bytes = 0
        self._resident_bytes = 0
        self._peak_bytes = 0

    def look(self) -> int:
        """Return the anonymous memory that it has resident, in bytes; 0 once it has ended."""
        now = process_memory(self._pid)
        if now is None:
            return 0
        with suppress(ProcessLookupError, PermissionError):
            self._limit_bytes = resource.prlimit(self._pid, resource.RLIMIT_DATA)[0]
        self._data_bytes, self._resident_bytes = now.data_bytes, now.resident_bytes
        self._peak_bytes = max(self._peak_bytes, now.data_bytes)
        return now.anonymous_bytes

    def is_near_limit(self, memory_bytes: int, most_resident_bytes: int) -> bool:
        """Return whether it came so near to its limit that the next allocation may have failed.

        ``memory_bytes``: what it may take in all. ``most_resident_bytes``: the most that it ever
        had resident, as the kernel says after its end: it may have grown since the last look.
        """
        if self._limit_bytes == resource.RLIM_INFINITY:
            return False
        grown = max(most_resident_bytes - self._resident_bytes - self._file_bytes, 0)
        peak = max(self._peak_bytes, self._data_bytes + grown)
        return self._limit_bytes - peak <= _NEAR_SHARE * memory_bytes

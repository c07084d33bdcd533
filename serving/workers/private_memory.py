"""What loads and unloads do to the anonymous memory of this worker, each told from the others."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from models.memory import anonymous_bytes, private_writable_bytes, trim, trim_end_of_arena
from serving.fleet import VersionKey

# What moves so much has freed large pieces, of which malloc keeps some for itself. It would be
# taken for the version's own, and for a copy of the weights that it maps.
_LARGE_BYTES: Final = 4 * 2**20


def settled_bytes() -> int:
    """Return the anonymous memory once freed heap memory was given back.

    The kernel walks all pages for it: a millisecond for each gigabyte. Not for the event loop.
    """
    trim()
    return anonymous_bytes()


class DataLimit:
    """Lets this process take ``more_bytes`` beside what it holds; 0: as much as there is.

    A request of a few bytes may ask a graph for any number of gigabytes. Past the limit the
    allocation fails, and with it the run; without one the kernel would end a process.
    """

    def __init__(self, more_bytes: int) -> None:
        self._more_bytes = more_bytes

    def set(self) -> None:
        """Bound what is taken from now on."""
        if self._more_bytes:
            self._limit(private_writable_bytes(os.getpid()) + self._more_bytes)

    def lift(self) -> None:
        """Let the process take what it needs."""
        if self._more_bytes:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, most_bytes: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            is_more = most_bytes == resource.RLIM_INFINITY or most_bytes > hard
            most_bytes = hard if is_more else most_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))


@dataclass(frozen=True, slots=True)
class _Load:
    """``moved_bytes``: what all loads and unloads before it had changed."""

    before_bytes: int
    moved_bytes: int
    taken_bytes: int


class PrivateMemory:
    """Measures around each load and unload; for the one thread that runs them.

    What other versions took or gave back between a version's load and its unload is known, for
    they were measured the same way, and is left out of what the version did not release. Growth
    by requests is not: it counts against the version that is unloaded next.
    """

    def __init__(
        self,
        measure: Callable[[], int] = settled_bytes,
        bound: DataLimit | None = None,
        give_back: Callable[[], None] = trim_end_of_arena,
    ) -> None:
        self._measure = measure
        self._give_back = give_back
        self._bound = bound or DataLimit(0)
        self._moved_bytes = 0
        self._before_bytes = 0
        self._loads: dict[VersionKey, _Load] = {}

    def begin(self) -> None:
        """Measure before a load or an unload, which what runs may take does not bound."""
        self._bound.lift()
        self._before_bytes = self._measure()

    def loaded(self, key: VersionKey) -> int:
        """Measure after a load; return what the version takes."""
        moved_bytes = self._moved_bytes
        _, taken_bytes = self._end()
        self._loads[key] = _Load(self._before_bytes, moved_bytes, taken_bytes)
        return max(0, taken_bytes)

    def failed(self) -> None:
        """Measure after a load that failed, so that what it left is not laid to another version."""
        self._end()

    def unloaded(self, key: VersionKey) -> int:
        """Measure after an unload; return what is still there of what its load found free."""
        load = self._loads.pop(key)
        after_bytes, given_bytes = self._end()
        others = self._moved_bytes - load.moved_bytes - load.taken_bytes - given_bytes
        return max(0, after_bytes - load.before_bytes - others)

    def _end(self) -> tuple[int, int]:
        after_bytes = self._measure()
        if abs(after_bytes - self._before_bytes) >= _LARGE_BYTES:
            self._give_back()
            after_bytes = self._measure()
        self._bound.set()
        change_bytes = after_bytes - self._before_bytes
        self._moved_bytes += change_bytes
        return after_bytes, change_bytes

"""Which versions are to blame when workers die, and when one has been blamed too often."""

from __future__ import annotations

import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final

from serving.fleet import VersionKey

MAX_DEATHS: Final = 3
VMSTAT: Final = Path("/proc/vmstat")


def oom_kills(path: Path = VMSTAT) -> int:
    """Return how many processes the kernel has killed for memory since boot, cgroups included."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in text.splitlines() if x.startswith("oom_kill ")), 0)


def suspects(
    loading: VersionKey | None, running: Collection[VersionKey], *, is_from_outside: bool
) -> frozenset[VersionKey]:
    """Return the versions that a death is held against.

    A version that was being loaded is the one suspect, however it ended. Without one it is those
    with a run under way, but not where somebody outside killed the worker: a popular version
    always runs, and a person who kills workers would otherwise get it quarantined.
    """
    if loading is not None:
        return frozenset({loading})
    return frozenset() if is_from_outside else frozenset(running)


def is_from_outside(code: int, *, is_ours: bool, is_out_of_memory: bool) -> bool:
    """Return whether a person or program ended the worker; no model can send these signals."""
    is_plain_kill = -code in (signal.SIGKILL, signal.SIGTERM)
    return is_plain_kill and not is_ours and not is_out_of_memory


class MemoryKills:
    """Notices that the kernel killed for memory, here or in any other process of the machine."""

    def __init__(self, path: Path = VMSTAT) -> None:
        self._path = path
        self._seen = oom_kills(path)

    def happened(self) -> bool:
        """Return whether it did since this was asked last, or since the start."""
        before, self._seen = self._seen, oom_kills(self._path)
        return self._seen > before


class DeathLedger:
    """Counts deaths per version; a version that leaves the target starts anew."""

    def __init__(self, max_deaths: int = MAX_DEATHS) -> None:
        self._max_deaths = max_deaths
        self._deaths: dict[VersionKey, int] = {}

    def record(self, versions: Collection[VersionKey]) -> tuple[VersionKey, ...]:
        """Count one death; return the versions for which it was one too many."""
        over = []
        for key in versions:
            self._deaths[key] = self._deaths.get(key, 0) + 1
            if self._deaths[key] == self._max_deaths:
                over.append(key)
        return tuple(over)

    def keep(self, versions: Collection[VersionKey]) -> None:
        """Forget all versions but these."""
        self._deaths = {key: n for key, n in self._deaths.items() if key in versions}

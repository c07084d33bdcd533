"""What processes hold, from /proc: memory, open files, threads, mappings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_PSS_GROWTH: Final = 0.05
_QUIET_TIMEOUT_S: Final = 15.0
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sums over some processes. ``pss_bytes`` counts a shared page by the share of each."""

    pss_bytes: int
    files: int
    threads: int
    mappings: int

    def growth_over(self, before: Footprint) -> str:
        """Return what grew by more than it may since ``before``; nothing if nothing did."""
        grown = []
        if self.pss_bytes > before.pss_bytes * (1 + MAX_PSS_GROWTH):
            grown.append(f"memory {before.pss_bytes >> 10} to {self.pss_bytes >> 10} KiB")
        for name in ("files", "threads", "mappings"):
            was, now = getattr(before, name), getattr(self, name)
            if now > was:
                grown.append(f"{name} {was} to {now}")
        return ", ".join(grown)


def footprint(pids: Sequence[int]) -> Footprint:
    """Return what these processes hold now."""
    folders = [Path(f"/proc/{pid}") for pid in pids]
    return Footprint(
        pss_bytes=sum(_pss_bytes(folder) for folder in folders),
        files=sum(len(list((folder / "fd").iterdir())) for folder in folders),
        threads=sum(len(list((folder / "task").iterdir())) for folder in folders),
        mappings=sum(len((folder / "maps").read_bytes().splitlines()) for folder in folders),
    )


def quiet_footprint(pids: Callable[[], Sequence[int]]) -> Footprint:
    """Return what they hold once two looks in a row find the same files and threads."""
    end = time.monotonic() + _QUIET_TIMEOUT_S
    last = footprint(pids())
    while time.monotonic() < end:
        time.sleep(_LOOK_S)
        now = footprint(pids())
        if (now.files, now.threads) == (last.files, last.threads):
            return now
        last = now
    return last


def settled_growth(before: Footprint, pids: Callable[[], Sequence[int]]) -> str:
    """Return what is still more than it may be after some seconds for it to be given back."""
    end = time.monotonic() + _QUIET_TIMEOUT_S
    while (grown := footprint(pids()).growth_over(before)) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return grown


def _pss_bytes(folder: Path) -> int:
    for line in (folder / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0

"""What processes hold, from /proc: memory, open files, threads, mappings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FIELDS: Final = 5
_QUIET_TIMEOUT_S: Final = 40.0
_LOOK_S: Final = 0.25
# A worker gives freed heap memory back after three quiet seconds, later where it is much. Held
# against memory that it still keeps for nobody, a leak of as much would pass.
RESTED_S: Final = 8.0
# Allocators and counters of the kernel move by so much without any reason.
_MOVED_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Growth:
    """How much more there may be at the end, and how long it may take to be given back."""

    memory_share: float = 0.05
    memory_bytes: int = 0
    threads: int = 0
    pieces_share: float = 0.25
    settle_s: float = 40.0


STRICT: Final = Growth()
# For a look at a busy machine after few requests: only what leaks with each of them.
ROUGH: Final = Growth(memory_bytes=32 << 20, threads=16, pieces_share=1.0, settle_s=4.0)
# Between two rounds of a warm-up: what has grown by no more than this is full.
STEADY: Final = Growth(memory_share=0.005, pieces_share=0)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Sums over some processes.

    ``memory_bytes``: what no file backs, a shared page counted by the share of each; pages of files
    are shared with whatever else runs, and a leak of them shows in ``mappings``, those of files.
    ``pieces``: all other mappings, which the heap cuts and joins as it likes.
    """

    memory_bytes: int
    files: int
    threads: int
    mappings: int
    pieces: int

    def growth_over(self, before: Footprint, allowed: Growth = STRICT) -> str:
        """Return what grew by more than it may since ``before``; nothing if nothing did."""
        most = {
            "memory_bytes": before.memory_bytes * (1 + allowed.memory_share) + allowed.memory_bytes,
            "files": before.files,
            "threads": before.threads + allowed.threads,
            "mappings": before.mappings,
            "pieces": before.pieces * (1 + allowed.pieces_share),
        }
        return ", ".join(
            f"{name} {getattr(before, name)} to {getattr(self, name)}"
            for name, bound in most.items()
            if getattr(self, name) > bound
        )


def footprint(pids: Sequence[int]) -> Footprint:
    """Return what these processes hold now."""
    folders = [Path(f"/proc/{pid}") for pid in pids]
    lines = [line for folder in folders for line in (folder / "maps").read_text().splitlines()]
    mappings = sum(len(line.split(None, _FIELDS)) > _FIELDS for line in lines)
    return Footprint(
        memory_bytes=sum(_memory_bytes(folder) for folder in folders),
        files=sum(len(list((folder / "fd").iterdir())) for folder in folders),
        threads=sum(len(list((folder / "task").iterdir())) for folder in folders),
        mappings=mappings,
        pieces=len(lines) - mappings,
    )


def quiet_footprint(pids: Callable[[], Sequence[int]], rest_s: float = 0.0) -> Footprint:
    """Return what they hold once two looks in a row find the same files and threads.

    ``rest_s``: nor may memory have fallen in so many seconds before: what was freed is given back.
    """
    began = fell_at = time.monotonic()
    last = footprint(pids())
    while (now_s := time.monotonic()) < began + _QUIET_TIMEOUT_S:
        time.sleep(_LOOK_S)
        now = footprint(pids())
        if now.memory_bytes < last.memory_bytes - _MOVED_BYTES:
            fell_at = now_s
        is_still = (now.files, now.threads) == (last.files, last.threads)
        if is_still and now_s >= fell_at + rest_s:
            return now
        last = now
    return last


def settled_growth(before: Footprint, pids: Callable[[], Sequence[int]], allowed: Growth) -> str:
    """Return what is still more than it may be after some seconds for it to be given back."""
    end = time.monotonic() + allowed.settle_s
    while (grown := footprint(pids()).growth_over(before, allowed)) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return grown


def _memory_bytes(folder: Path) -> int:
    lines = (folder / "smaps_rollup").read_text().splitlines()
    counted = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))

"""What a tree of processes holds in memory, read from /proc, and what a bench makes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MB: Final = 1_000_000
# Of the weights in use, for what the kernel and the runtime keep beside them.
PSS_FACTOR: Final = 1.10
WORKER_BYTES: Final = 150 * MB


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one process or of several. ``pss``: a page that is shared counts by its share."""

    pss_bytes: int = 0
    anonymous_bytes: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            self.pss_bytes + other.pss_bytes, self.anonymous_bytes + other.anonymous_bytes
        )  # fmt: skip


def parse_rollup(text: str) -> Held:
    """Return what /proc/PID/smaps_rollup says."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in ("Pss", "Anonymous"):
            found[key] = int(value.split()[0]) * 1024
    return Held(found.get("Pss", 0), found.get("Anonymous", 0))


def held_by(pids: Iterable[int]) -> Held:
    """Return the sum over processes; one that ended meanwhile holds nothing."""
    total = Held()
    for pid in pids:
        with contextlib.suppress(OSError):
            total += parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii", "replace"))
    return total


def tree_of(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*"):
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text("ascii").split())
    return found


def in_use_bytes(versions: Iterable[Mapping[str, Any]]) -> int:
    """Return the weights in use by a ledger's versions, each byte once.

    For versions that all share the same weights: what each shares is one and the same.
    """
    memory = list(versions)
    own = sum(each["unique_bytes"] for each in memory)
    return int(own + max((each["shared_bytes"] for each in memory), default=0))


def private_bytes(versions: Iterable[Mapping[str, Any]], workers: int) -> int:
    """Return the private bytes that a ledger shows for its versions, in all workers."""
    return sum((each["private_bytes_per_worker"] or 0) * workers for each in versions)


def allowed_pss_bytes(in_use: int, private: int, workers: int) -> float:
    """Return what a server may hold for weights of ``in_use`` bytes."""
    return PSS_FACTOR * in_use + WORKER_BYTES * workers + private


def taken_bytes(before: Held, loaded: Held, reserved_bytes: int = 0) -> int:
    """Return what a load took; raises ValueError if that was nothing.

    Mapped weights that nobody read yet are in no process; ``reserved_bytes`` of the budget count
    where they are more than what the processes grew by.
    """
    took = max(loaded.pss_bytes - before.pss_bytes, reserved_bytes)
    if took <= 0:
        raise ValueError(f"the load took {took} bytes: there is nothing to give back")
    return took


def unreleased_share(before: Held, loaded: Held, after: Held, reserved_bytes: int = 0) -> float:
    """Return how much of what a load took its unload left; raises ValueError if it took nothing."""
    took = taken_bytes(before, loaded, reserved_bytes)
    return max(0, after.pss_bytes - before.pss_bytes) / took

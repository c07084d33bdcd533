"""Freed heap memory of a worker, given back to the system once nobody asks it anything.

Runs take their scratch from the allocator and free it again; so do large bodies and bursts of
requests. What is freed below a piece that stays is kept for the next one, up to the most that was
ever wanted at once, and it counts as the worker's until somebody trims.

A trim holds an arena's lock while it walks it, and what answers requests waits for that. So it has
to be quiet first, the longer the more there is to give back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from models.memory import anonymous_bytes, trim
from serving.data.shadows import Activity

LOOK_S: Final = 1.0
QUIET_S: Final = 3.0
# Growth below this is not worth a walk through the heap.
LEAST_BYTES: Final = 1 << 20
# 0.06 to 0.9 s for a gigabyte were seen, with pieces from 2 MiB down to 8 KiB.
_S_PER_BYTE: Final = 0.3e-9
# After a quiet of so many times the trim, one request in so many as came so far meets it at most.
_QUIET_PER_TRIM: Final = 300
# What used less processor time since the last look has freed little; beats alone use less in a
# minute.
_LEAST_CPU_S: Final = 0.1


class QuietHeap:
    """Decides when a heap is measured and trimmed. Times in seconds of one monotonic clock.

    ``quiet_s``: how long nothing may have begun at the least.
    """

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._begun = -1
        self._since_s = 0.0
        self._need_s = quiet_s
        self._cpu_s = 0.0
        self._kept_bytes = 0
        self._trim_s = 0.0

    def is_due(self, activity: Activity, now_s: float, cpu_s: float) -> bool:
        """Whether it was quiet for long enough, and enough was done, to look at the memory.

        ``cpu_s``: the processor time of the process so far.
        """
        if activity.in_flight or activity.begun != self._begun:
            self._begun = activity.begun
            self._since_s, self._need_s = now_s, self._quiet_s
            return False
        return now_s - self._since_s >= self._need_s and cpu_s - self._cpu_s >= _LEAST_CPU_S

    def is_worth(self, held_bytes: int, now_s: float, cpu_s: float) -> bool:
        """Whether what was measured calls for a trim now; if it has to be quieter first, wait."""
        grown_bytes = held_bytes - self._kept_bytes
        if grown_bytes < LEAST_BYTES:
            self._cpu_s = cpu_s
            return False
        self._need_s = max(
            self._quiet_s, _QUIET_PER_TRIM * max(self._trim_s, grown_bytes * _S_PER_BYTE)
        )  # fmt: skip
        return now_s - self._since_s >= self._need_s

    def trimmed(self, kept_bytes: int, trim_s: float, cpu_s: float) -> None:
        """Take down what stayed after a trim, and how long that took."""
        self._kept_bytes, self._trim_s, self._cpu_s = kept_bytes, trim_s, cpu_s


async def trim_when_quiet(
    activity: Callable[[], Activity], heap: QuietHeap, look_s: float = LOOK_S
) -> None:
    """Look at the heap of this process every ``look_s`` seconds until cancelled.

    Returns at once where the kernel does not say what a process holds.
    """
    while True:
        await asyncio.sleep(look_s)
        if not heap.is_due(activity(), time.monotonic(), time.process_time()):
            continue
        # The kernel walks all pages for it: milliseconds for each gigabyte.
        try:
            held_bytes = await asyncio.to_thread(anonymous_bytes)
        except OSError:
            return
        now_s, cpu_s = time.monotonic(), time.process_time()
        # Somebody may have come meanwhile.
        if heap.is_due(activity(), now_s, cpu_s) and heap.is_worth(held_bytes, now_s, cpu_s):
            kept_bytes, trim_s = await asyncio.to_thread(_trim)
            heap.trimmed(kept_bytes, trim_s, time.process_time())


def _trim() -> tuple[int, float]:
    """Return what is held afterwards, and the processor time that the trim took."""
    began_s = time.thread_time()
    trim()
    trim_s = time.thread_time() - began_s
    return anonymous_bytes(), trim_s

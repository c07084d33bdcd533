"""Threads for the runs of all versions of a worker, which the system schedules by priority.

The event loop shares its cores with them. Threads that give way to it (a higher nice value, which
Linux keeps for each thread) leave it what it needs, so that a batch job on one version is hardly
felt by the requests of another; and a version of higher priority has threads that give way less.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

R = TypeVar("R")
# The weight of a nice value is 1.25 times that of the next: 5 leaves the loop three quarters.
NORMAL_NICE: Final = 5
MAX_NICE: Final = 19


class RunPool:
    """Gives versions their executors. ``close`` when nothing runs any more."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def executor(self) -> PriorityExecutor:
        """Return an executor for one version, of priority 0."""
        return PriorityExecutor(self)

    def submit(
        self, priority: int, function: Callable[..., R], *arguments: Any, **named: Any
    ) -> Future[R]:
        """Run a call in a thread of a priority: each step of it is one step of nice."""
        nice = min(max(NORMAL_NICE - priority, 0), MAX_NICE)
        pool = self._pools.get(nice)
        if pool is None:
            pool = ThreadPoolExecutor(self._max_runs, f"run-{nice}", _give_way, (nice,))
            self._pools[nice] = pool
        return pool.submit(function, *arguments, **named)

    def close(self) -> None:
        """Let the threads end when they are done."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class PriorityExecutor(Executor):
    """The executor of one version. ``priority`` may change at any time: it holds from then on."""

    def __init__(self, pool: RunPool) -> None:
        self._pool = pool
        self.priority = 0

    def submit(self, function: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        """Run a call in a thread."""
        return self._pool.submit(self.priority, function, *arguments, **named)


def background_executor(threads: int) -> ThreadPoolExecutor:
    """Return threads for what is no run and may wait, which give way like a run of priority 0."""
    return ThreadPoolExecutor(threads, "background", _give_way, (NORMAL_NICE,))


def _give_way(nice: int) -> None:
    # Where the system does not let a thread be scheduled, it runs like any other.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)

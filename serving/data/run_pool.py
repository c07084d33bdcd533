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
from typing import Any, Final, TypeAlias, TypeVar

from serving.thread_pool import start_all

R = TypeVar("R")
# Calls that threads were given and have not ended; sets take and lose members in one step.
UnderWay: TypeAlias = "set[Future[Any]]"
# The weight of a nice value is 1.25 times that of the next: 5 leaves the loop three quarters.
NORMAL_NICE: Final = 5
MAX_NICE: Final = 19


class RunPool:
    """Gives versions their executors. ``close`` when nothing runs any more.

    ``under_way``: where runs that have not ended are kept.
    """

    def __init__(self, max_runs: int, under_way: UnderWay | None = None) -> None:
        self._max_runs = max_runs
        self._under_way: UnderWay = set() if under_way is None else under_way
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
            pool = _Threads(self._max_runs, f"run-{nice}", nice, self._under_way)
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


def background_executor(threads: int, under_way: UnderWay) -> ThreadPoolExecutor:
    """Return threads for what is no run and may wait, which give way like a run of priority 0.

    All are there from the start. ``under_way``: where calls that have not ended are kept.
    """
    pool = _Threads(threads, "background", NORMAL_NICE, under_way)
    pool.start(threads)
    return pool


class _Threads(ThreadPoolExecutor):
    """Threads that give way by ``nice``. It can be seen at no cost whether any has work to do."""

    def __init__(self, threads: int, name: str, nice: int, under_way: UnderWay) -> None:
        super().__init__(threads, name, _give_way, (nice,))
        self._under_way = under_way

    def start(self, threads: int) -> None:
        """Start all threads, which is no work of theirs."""
        start_all(super().submit, threads)

    def submit(self, function: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        future = super().submit(function, *arguments, **named)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future


def _give_way(nice: int) -> None:
    # Counted from the event loop's, in the main thread: a server that is nice itself would have
    # threads that go before its loop, or, where only root may take that back, as it.
    # Where the system does not let a thread be scheduled, it runs like any other.
    with contextlib.suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + nice, MAX_NICE))

"""Threads for runs: which of them give way to the event loop."""

from __future__ import annotations

import os
import threading

import pytest

from serving.data.run_pool import RunPool


def nice_here() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize(
    ("priority", "nice"), [(0, 5), (3, 2), (5, 0), (100, 0), (-5, 10), (-100, 19)]
)
def test_priority_is_how_little_a_thread_gives_way(priority: int, nice: int) -> None:
    """The loop itself stays as it is, and a change holds from the next run on."""
    pool = RunPool(2)
    executor = pool.executor()
    executor.submit(nice_here).result()
    executor.priority = priority
    before = nice_here()
    try:
        assert executor.submit(nice_here).result() == max(nice, before)
        assert nice_here() == before
    finally:
        pool.close()

"""Pools that have all their threads from the start; those of the parent wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

# As many calls of the admin plane wait for the disk at once; the others wait for these.
DISK_THREADS: Final = 8


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool that has all its threads from the start."""
    pool = ThreadPoolExecutor(threads, name)
    start_all(pool.submit, threads)
    return pool


def start_all(submit: Callable[[Callable[[], int]], object], threads: int) -> None:
    """Start all ``threads`` of a pool that has none yet.

    A pool that grows when it happens to be needed looks like a leak for as long as it does.
    """
    all_here = threading.Barrier(threads + 1)
    for _ in range(threads):
        submit(all_here.wait)
    all_here.wait()

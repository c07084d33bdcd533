"""Threads of the parent for what waits for the disk."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

# As many calls of the admin plane wait for the disk at once; the others wait for these.
DISK_THREADS: Final = 8


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool that has all its threads from the start.

    A pool that grows when it happens to be needed looks like a leak for as long as it does.
    """
    pool = ThreadPoolExecutor(threads, name)
    all_here = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(all_here.wait)
    all_here.wait()
    return pool

"""The thread in which a worker loads and unloads, with a heap that no other thread waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from models import priority

# Less than what is mapped apart from any heap: so the thread's first allocation gives it one.
_FIRST_BYTES: Final = 64 << 10


def started_load_thread(session_threads: int) -> ThreadPoolExecutor:
    """Return the thread, started; call this before the process has any other thread.

    The C library gives heaps (arenas) to threads in the order of their first allocation, and
    shares them out from the main thread's on once there are ``ENVIRONMENT["MALLOC_ARENA_MAX"]``;
    the one given first is the last to be shared. Trimming locks a heap for the whole walk: 60 ms
    after the load of a forest of three million nodes, in which a thread of the same heap cannot
    allocate, and an event loop cannot do anything.

    ``session_threads``: with more than one the session's own pool would be started in this thread
    and inherit its priority, so that it keeps the usual one.
    """
    pool = ThreadPoolExecutor(
        1, thread_name_prefix="loads",
        initializer=priority.step_back_thread if session_threads == 1 else None,
    )  # fmt: skip
    pool.submit(bytearray, _FIRST_BYTES).result()
    return pool

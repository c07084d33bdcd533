"""The heap of the thread that loads: nobody waits for it while it is trimmed."""

import os
import subprocess
import sys

import pytest

from serving.workers.worker_process import ENVIRONMENT

# Prints in whose heap each thread's memory lies: a thread's heap is aligned to its largest size.
_PROGRAM = """
import ctypes, sys, threading
from serving.workers.load_thread import started_load_thread

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)

def heap():
    return libc.malloc(20_000) >> 26

def started(threads):
    heaps, ended = [], threading.Event()
    def live():
        heaps.append(heap())
        ready.release()
        ended.wait()
    ready = threading.Semaphore(0)
    for _ in range(threads):
        threading.Thread(target=live, daemon=True).start()
        ready.acquire()
    return heaps

early = started(int(sys.argv[1]))
pool = started_load_thread(1)
loads = pool.submit(heap).result()
others = [heap(), *early, *started(10)]
print(others.count(loads), len(set(others)))
"""


def _sharing(threads_before: int) -> tuple[int, int]:
    """Return how many other threads share the heap, and how many heaps there are beside it."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(threads_before)],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    sharing, heaps = map(int, done.stdout.split())
    return sharing, heaps


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="heaps are glibc's")
def test_no_other_thread_shares_the_heap_of_the_thread_that_loads() -> None:
    sharing, heaps = _sharing(0)
    assert sharing == 0
    assert heaps == int(ENVIRONMENT["MALLOC_ARENA_MAX"]) - 1


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="heaps are glibc's")
def test_a_heap_that_is_given_late_is_shared() -> None:
    sharing, _ = _sharing(8)
    assert sharing > 0

"""A worker's heap is trimmed once it is quiet for long enough, and only where that gives much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from serving.data.shadows import Activity
from serving.workers.quiet_heap import LEAST_BYTES, QUIET_S, QuietHeap

MB = 1_000_000
BUSY_CPU_S = 10.0


def quiet_heap(kept_bytes: int = 50 * MB, trim_s: float = 0.0) -> QuietHeap:
    """One that was trimmed before, and whose last request began at 100 s."""
    heap = QuietHeap()
    heap.trimmed(kept_bytes, trim_s, cpu_s=0.0)
    assert not heap.is_due(Activity(0, 7), 100.0, BUSY_CPU_S)
    return heap


def test_it_is_looked_at_when_nothing_began_for_a_while():
    """Not while a request is under way, and not soon after one began."""
    heap = quiet_heap()
    assert not heap.is_due(Activity(0, 7), 100.0 + QUIET_S - 0.1, BUSY_CPU_S)
    assert heap.is_due(Activity(0, 7), 100.0 + QUIET_S, BUSY_CPU_S)
    assert not heap.is_due(Activity(1, 7), 100.0 + QUIET_S, BUSY_CPU_S)
    assert not heap.is_due(Activity(0, 7), 101.0 + QUIET_S, BUSY_CPU_S)
    assert not heap.is_due(Activity(0, 8), 200.0, BUSY_CPU_S)
    assert heap.is_due(Activity(0, 8), 200.0 + QUIET_S, BUSY_CPU_S)


def test_it_is_left_alone_where_nothing_was_done_since():
    """A worker that only beats neither measures nor trims."""
    heap = quiet_heap()
    assert not heap.is_due(Activity(0, 7), 200.0, cpu_s=0.05)
    assert heap.is_due(Activity(0, 7), 200.0, cpu_s=0.2)
    heap.trimmed(50 * MB, 0.001, cpu_s=0.2)
    assert not heap.is_due(Activity(0, 7), 300.0, cpu_s=0.25)


def test_little_growth_is_not_worth_a_trim_nor_another_look():
    """What was measured holds until more is done."""
    heap = quiet_heap()
    assert not heap.is_worth(50 * MB + LEAST_BYTES - 1, 110.0, BUSY_CPU_S)
    assert not heap.is_due(Activity(0, 7), 120.0, BUSY_CPU_S + 0.05)
    assert heap.is_due(Activity(0, 7), 120.0, BUSY_CPU_S + 0.2)
    assert heap.is_worth(50 * MB + LEAST_BYTES, 120.0, BUSY_CPU_S + 0.2)


def test_more_to_give_back_takes_a_longer_quiet():
    """A gigabyte may hold the allocator for 0.3 s, so it waits for 90 s; a request starts anew."""
    heap = quiet_heap()
    grown = 1050 * MB
    assert not heap.is_worth(grown, 103.0, BUSY_CPU_S)
    assert not heap.is_due(Activity(0, 7), 189.0, BUSY_CPU_S)
    assert heap.is_due(Activity(0, 7), 190.5, BUSY_CPU_S)
    assert heap.is_worth(grown, 190.5, BUSY_CPU_S)
    assert not heap.is_due(Activity(0, 8), 200.0, BUSY_CPU_S)
    assert heap.is_due(Activity(0, 8), 200.0 + QUIET_S, BUSY_CPU_S)


def test_a_trim_that_took_long_makes_the_next_one_wait():
    """A heap in many pieces takes long to walk, however little has grown."""
    heap = quiet_heap(trim_s=0.1)
    assert not heap.is_worth(60 * MB, 120.0, BUSY_CPU_S)
    assert heap.is_worth(60 * MB, 130.0, BUSY_CPU_S)


def test_what_stays_after_a_trim_is_no_growth():
    """Memory in use is measured again and again in vain, but not trimmed."""
    heap = quiet_heap()
    heap.trimmed(80 * MB, 0.001, cpu_s=0.0)
    assert not heap.is_worth(80 * MB, 110.0, BUSY_CPU_S)


# Frees pieces below others that stay, which the allocator keeps; says how much went after all.
CHURN = """
import asyncio, ctypes
from models.memory import anonymous_bytes
from serving.data.shadows import Activity
from serving.workers.quiet_heap import QuietHeap, trim_when_quiet

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
pieces = [(libc.malloc(64 << 10), libc.malloc(1500)) for _ in range(320)]
for piece, _ in pieces:
    ctypes.memset(piece, 1, 64 << 10)
for piece, _ in pieces:
    libc.free(piece)
full = anonymous_bytes()

async def main():
    heap = QuietHeap(quiet_s=0.1)
    heap.trimmed(full - (20 << 20), 0.0, cpu_s=-1.0)
    task = asyncio.create_task(trim_when_quiet(lambda: Activity(0, 1), heap, look_s=0.05))
    for _ in range(1000):
        await asyncio.sleep(0.02)
        if anonymous_bytes() < full - (16 << 20):
            break
    task.cancel()

asyncio.run(main())
print(full - anonymous_bytes())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_freed_memory_goes_back_to_the_system():
    """Pieces that were freed below others are no longer held a few seconds later."""
    done = subprocess.run(
        [sys.executable, "-c", CHURN], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) >= 16 << 20

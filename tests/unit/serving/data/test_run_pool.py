"""Threads for runs: which of them give way to the event loop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving.data.run_pool import MAX_NICE, RunPool, UnderWay, background_executor

ROOT = Path(__file__).parents[4]


def nice_here() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize(
    ("priority", "nice"), [(0, 5), (3, 2), (5, 0), (100, 0), (-5, 10), (-100, 19)]
)
def test_priority_is_how_little_a_thread_gives_way(priority: int, nice: int) -> None:
    """Counted from the loop, which stays as it is; a change holds from the next run on."""
    pool = RunPool(2)
    executor = pool.executor()
    executor.submit(nice_here).result()
    executor.priority = priority
    before = nice_here()
    try:
        assert executor.submit(nice_here).result() == min(before + nice, MAX_NICE)
        assert nice_here() == before
    finally:
        pool.close()


@pytest.mark.slow
def test_threads_of_a_server_that_is_nice_give_way_to_its_loop() -> None:
    """As they do in any other; with a nice value of their own they would go before it."""
    code = (
        "import os, threading\n"
        "mine = os.nice(3)\n"
        "from serving.data.run_pool import RunPool\n"
        "theirs = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "pool = RunPool(1)\n"
        "print(mine, pool.executor().submit(theirs).result())\n"
        "pool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, check=True)  # fmt: skip
    mine, theirs = map(int, done.stdout.split())
    assert theirs == min(mine + 5, MAX_NICE)


def test_it_is_known_whether_any_thread_is_at_work() -> None:
    """What was given to threads is under way until it ended, well or not."""
    under_way: UnderWay = set()
    runs, others = RunPool(2, under_way), background_executor(1, under_way)
    may_end = threading.Event()
    try:
        futures = [
            runs.executor().submit(may_end.wait),
            others.submit(may_end.wait),
            runs.executor().submit(int, "no number"),
        ]
        assert set(futures[:2]) <= under_way
        may_end.set()
        assert futures[0].result()
        assert futures[1].result()
        assert futures[2].exception() is not None
        runs.close()
        others.shutdown()
        # Callbacks come after the result; a thread that has ended has made them all.
        for thread in threading.enumerate():
            if thread.name.startswith(("run-", "background")):
                thread.join(5)
        assert under_way == set()
    finally:
        may_end.set()
        runs.close()
        others.shutdown()


def test_what_waits_in_the_background_finds_its_threads_there() -> None:
    """A pool that grows later looks like a leak."""
    under_way: UnderWay = set()
    before = threading.active_count()
    pool = background_executor(3, under_way)
    try:
        assert threading.active_count() == before + 3
        assert not under_way
        assert [pool.submit(threading.active_count).result() for _ in range(9)] == [before + 3] * 9
    finally:
        pool.shutdown()

"""How fast a queue is worked off, and how much may wait by that."""

from __future__ import annotations

from itertools import count

import pytest

from serving.data.batcher import ALWAYS_REQUESTS
from serving.data.queue_pace import NO_BOUND, QueuePace
from serving.errors import QueueFull
from tests.fakes import table
from tests.unit.serving.batch_bench import Bench

_MS = 1_000_000


def _worked_off(
    pace: QueuePace, runs: int, ms: float, rows: int = 1, start_ms: float = 1.0
) -> float:
    """Let ``runs`` runs end one after the other while others wait; return when the last one did."""
    end_ms = start_ms
    for number in range(runs + 1):
        end_ms = start_ms + number * ms
        pace.worked_off(int(end_ms * _MS), rows, is_backlogged=True)
    return end_ms


def test_nothing_is_bounded_before_some_runs_were_seen() -> None:
    """A pace that is not known refuses nobody."""
    pace = QueuePace()
    _worked_off(pace, 3, 10)
    assert pace.rows_within(1) == NO_BOUND
    pace.worked_off(41 * _MS, 1, is_backlogged=True)
    assert pace.rows_within(100 * _MS) == pytest.approx(10, abs=1)


def test_the_pace_is_that_of_rows() -> None:
    """Runs that requests share count by their rows."""
    pace = QueuePace()
    _worked_off(pace, 40, 20, rows=8)
    assert pace.rows_within(1000 * _MS) == pytest.approx(400, abs=1)


def test_a_time_without_a_backlog_says_nothing() -> None:
    """An idle slot is not a slow one."""
    pace = QueuePace()
    last_ms = _worked_off(pace, 8, 10)
    pace.worked_off(int((last_ms + 10) * _MS), 1, is_backlogged=False)
    pace.worked_off(int((last_ms + 60_000) * _MS), 1, is_backlogged=True)
    assert pace.rows_within(1000 * _MS) == pytest.approx(100, abs=1)


def test_one_interruption_says_little_and_a_slower_pace_is_learnt() -> None:
    """A second that the system took once must not shut the door; one run after the other may."""
    pace = QueuePace()
    last_ms = _worked_off(pace, 100, 10)
    pace.worked_off(int((last_ms + 10_000) * _MS), 1, is_backlogged=True)
    assert pace.rows_within(1000 * _MS) > 70
    _worked_off(pace, 200, 1000, start_ms=last_ms + 20_000)
    assert pace.rows_within(10_000 * _MS) == pytest.approx(10, abs=1)


async def _paced(queue_ms: int, run_ms: float = 10.0) -> Bench:
    """Return a bench whose queue works off a row in ``run_ms``, with nothing waiting."""
    bench = Bench(is_batchable=False, queue_rows=4096, queue_ms=queue_ms)
    tasks = [await bench.submit(table(value)) for value in range(10)]
    for _ in tasks:
        bench.clock.advance_ms(run_ms)
        bench.executor.run_next()
        await bench.settle()
    assert all(task.done() for task in tasks)
    return bench


async def test_no_more_may_wait_than_is_worked_off_in_queue_ms() -> None:
    """It says how much waits, how fast it goes and which setting holds; all else is kept."""
    bench = await _paced(queue_ms=500)
    tasks = []
    for value in count():
        tasks.append(await bench.submit(table(value)))
        if tasks[-1].done():
            break
    with pytest.raises(
        QueueFull,
        match=r"queue full: (\d+) rows wait for fraud/3, which works off \1 in queue_ms 500, "
        "no room for 1 more",
    ):
        tasks.pop().result()
    assert len(tasks) == pytest.approx(51, abs=2)
    await bench.run()
    assert all(task.result() for task in tasks)


async def test_some_may_wait_for_the_slowest_version() -> None:
    """A pace that was measured in a bad moment is corrected by runs, so there must be some."""
    bench = await _paced(queue_ms=500, run_ms=100)
    tasks = [await bench.submit(table(value)) for value in range(ALWAYS_REQUESTS + 2)]
    assert [task.done() for task in tasks] == [False] * (ALWAYS_REQUESTS + 1) + [True]
    with pytest.raises(QueueFull, match="queue_ms 500"):
        tasks.pop().result()
    await bench.run()


async def test_zero_bounds_by_rows_only() -> None:
    """Who wants a long queue gets one."""
    bench = await _paced(queue_ms=0, run_ms=100)
    tasks = [await bench.submit(table(value)) for value in range(200)]
    assert not any(task.done() for task in tasks)
    await bench.run()
    assert all(task.result() for task in tasks)

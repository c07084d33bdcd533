"""Runs on the event loop, where the policy finds them cheap."""

from __future__ import annotations

import asyncio

import pytest

from models.errors import InputRefused
from serving.data.batch_calls import submit
from serving.errors import DeadlineExpired
from tests.fakes import table
from tests.unit.serving.batch_bench import FAR_NS, Bench, Inline, firsts, poisoned


async def test_what_arrives_in_one_pass_of_the_loop_is_one_run_on_it() -> None:
    """Cheap requests share a run without a thread, a timer, or a wait."""
    policy = Inline()
    bench = Bench(policy=policy)
    tasks = [
        asyncio.create_task(submit(bench.batcher, table(v), 1, None, FAR_NS)) for v in range(5)
    ]
    await bench.settle()
    assert [firsts(task.result()) for task in tasks] == [[v] for v in range(5)]
    assert (bench.servable.run_rows, bench.executor.waiting) == ([5], 0)
    assert policy.seen == [(5, 5)]


async def test_an_inline_batch_is_capped_and_the_rest_follows() -> None:
    """Rows above the cap wait for the next run, in order."""
    bench = Bench(policy=Inline(max_rows=3))
    tasks = [
        asyncio.create_task(submit(bench.batcher, table(v), 1, None, FAR_NS)) for v in range(7)
    ]
    await bench.settle()
    assert [firsts(task.result()) for task in tasks] == [[v] for v in range(7)]
    assert bench.servable.run_rows == [3, 3, 1]


async def test_an_inline_batch_that_fails_goes_on_in_a_thread() -> None:
    """Finding the bad row takes several runs, which must not keep the loop."""
    servable = poisoned(lambda value: value == 2, InputRefused("index"))
    bench = Bench(servable, policy=Inline())
    tasks = [
        asyncio.create_task(submit(bench.batcher, table(v), 1, None, FAR_NS)) for v in range(4)
    ]
    await bench.settle()
    assert (bench.servable.run_rows, bench.executor.waiting) == ([4], 1)
    await bench.run()
    assert [firsts(tasks[v].result()) for v in (0, 1, 3)] == [[0], [1], [3]]
    with pytest.raises(InputRefused):
        tasks[2].result()


async def test_of_a_backlog_what_cannot_be_in_time_is_not_computed() -> None:
    """Under overload a run is spent on answers that somebody still reads."""
    bench = Bench(policy=Inline(max_rows=1, needed_ns=5_000_000))
    soon = bench.clock.now_ns + 4_000_000
    tasks = [asyncio.create_task(submit(bench.batcher, table(v), 1, None, soon)) for v in range(2)]
    tasks.append(asyncio.create_task(submit(bench.batcher, table(2), 1, None, FAR_NS)))
    await bench.settle()
    for task in tasks[:2]:
        with pytest.raises(DeadlineExpired):
            task.result()
    assert firsts(tasks[2].result()) == [2]
    # Alone, the same request is tried: the estimate may be wrong.
    alone = await bench.submit(table(3), timeout_ms=4)
    assert firsts(alone.result()) == [3]

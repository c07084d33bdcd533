"""The batcher's queue, its deadlines and its batches, on a driven clock and a driven executor."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from models.errors import RunFailed
from models.signature import Signature, TensorSpec
from registry.errors import NotReady
from serving.data.batch_calls import submit
from serving.errors import DeadlineExpired, QueueFull
from tests.fakes import FakeServable, table
from tests.unit.serving.batch_bench import Bench, firsts, poisoned


async def test_an_idle_version_runs_a_request_at_once() -> None:
    """The first request is in a run before anything else happens."""
    bench = Bench()
    task = await bench.submit(table(7))
    assert bench.executor.waiting == 1
    await bench.run()
    assert firsts(task.result()) == [7]


async def test_requests_that_arrive_during_a_run_form_the_next_batch() -> None:
    """While one run is under way, all that comes shares the next one, each getting its own rows."""
    bench = Bench()
    tasks = [await bench.submit(table(value)) for value in range(6)]
    await bench.run()
    assert [firsts(task.result()) for task in tasks] == [[v] for v in range(6)]
    assert bench.servable.run_rows == [1, 5]
    assert bench.counters.batches == [1, 5]


async def test_g08_a_run_counts_rows_and_an_oversize_request_runs_alone() -> None:
    """No run is larger than max_batch_rows except one request that is larger by itself."""
    bench = Bench(max_batch_rows=32, queue_rows=1000)
    sizes = [1, 20, 100, 1, 20, 20, 1, 100, 31, 1]
    tasks = [await bench.submit(table(*[index] * size)) for index, size in enumerate(sizes)]
    await bench.run()
    for index, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
        assert firsts(task.result()) == [index] * size
    assert bench.servable.run_rows == [1, 20, 100, 21, 21, 100, 32]


async def test_g08_the_queue_is_bounded_by_rows() -> None:
    """A request that does not fit is refused at once with the numbers; the others are answered."""
    bench = Bench(queue_rows=8)
    first = await bench.submit(table(0))
    waiting = [await bench.submit(table(1, 1, 1, 1)) for _ in range(2)]
    refused = await bench.submit(table(2))
    with pytest.raises(QueueFull, match="queue full: 8 of 8 rows for fraud/3"):
        refused.result()
    await bench.run()
    assert [firsts(task.result()) for task in [first, *waiting]] == [[0], [1] * 4, [1] * 4]
    assert bench.counters.deepest == 8
    assert bench.counters.queue_depth == 0


async def test_a_request_larger_than_the_queue_waits_where_nothing_else_does() -> None:
    """A request of more rows than the queue holds is not refused for ever."""
    bench = Bench(queue_rows=2)
    first = await bench.submit(table(0))
    large = await bench.submit(table(1, 2, 3))
    refused = await bench.submit(table(4))
    with pytest.raises(QueueFull):
        refused.result()
    await bench.run()
    assert (firsts(first.result()), firsts(large.result())) == ([0], [1, 2, 3])


async def test_a_request_without_rows_takes_a_place_in_the_queue() -> None:
    """Requests of no rows cannot fill the queue without bound."""
    bench = Bench(queue_rows=2)
    tasks = [await bench.submit(table()) for _ in range(4)]
    with pytest.raises(QueueFull):
        tasks[3].result()
    await bench.run()
    assert [task.result().arrays[0].shape for task in tasks[:3]] == [(0, 4)] * 3


async def test_work_whose_deadline_passed_in_the_queue_is_not_computed() -> None:
    """An expired request gets DeadlineExpired and no row of it reaches the model."""
    bench = Bench()
    first = await bench.submit(table(0))
    late = await bench.submit(table(1), timeout_ms=5000)
    good = await bench.submit(table(2))
    bench.clock.advance_ms(6000)
    await bench.run()
    assert (firsts(first.result()), firsts(good.result())) == ([0], [2])
    with pytest.raises(DeadlineExpired, match="no answer of fraud/3 after 6000 ms"):
        late.result()
    assert bench.servable.run_rows == [1, 1]


async def test_a_deadline_is_kept_while_a_run_is_under_way() -> None:
    """A caller gets its error when its time is over, not when the run is."""
    bench = Bench()
    running = await bench.submit(table(0), timeout_ms=1)
    queued = await bench.submit(table(1), timeout_ms=1)
    bench.clock.advance_ms(1)
    for task in (running, queued):
        with pytest.raises(DeadlineExpired):
            await asyncio.wait_for(task, 5)
    await bench.run()
    assert bench.servable.run_rows == [1]


async def test_a_deadline_that_is_over_already_is_refused() -> None:
    """A submit past its deadline never reaches the queue."""
    bench = Bench()
    with pytest.raises(DeadlineExpired):
        await submit(bench.batcher, table(1), 1, None, bench.clock.now_ns)
    assert bench.executor.waiting == 0


async def test_g07_a_cancelled_caller_is_taken_out_of_the_queue() -> None:
    """What was dropped is never computed, and its place is free at once."""
    bench = Bench(queue_rows=2)
    first = await bench.submit(table(0))
    dropped = [await bench.submit(table(value)) for value in (1, 2)]
    for task in dropped:
        task.cancel()
    await bench.settle()
    assert bench.counters.queue_depth == 0
    last = [await bench.submit(table(value)) for value in (3, 4)]
    await bench.run()
    assert [firsts(task.result()) for task in [first, *last]] == [[0], [3], [4]]
    assert bench.servable.run_rows == [1, 2]
    assert all(task.cancelled() for task in dropped)


async def test_g07_a_caller_who_leaves_during_its_run_harms_nobody() -> None:
    """The others of the run get their rows."""
    bench = Bench()
    await bench.submit(table(0))
    tasks = [await bench.submit(table(value)) for value in (1, 2, 3)]
    bench.executor.run_next()
    await bench.settle()
    tasks[1].cancel()
    await bench.run()
    assert (firsts(tasks[0].result()), firsts(tasks[2].result())) == ([1], [3])
    assert tasks[1].cancelled()


TWO = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),),
    (TensorSpec("label", "INT64", (-1,)), TensorSpec("proba", "FP32", (-1, 4))),
)


async def test_g02_each_member_of_a_batch_gets_the_outputs_it_asked_for() -> None:
    """One asks for the second, one for both in reverse, one for none in particular."""
    servable = FakeServable(
        lambda inputs: [inputs["x"][:, 0].astype(np.int64), inputs["x"] / 10], TWO
    )
    bench = Bench(servable)
    await bench.submit(table(0))
    one = await bench.submit(table(1), outputs=("proba",))
    two = await bench.submit(table(2), outputs=("proba", "label"))
    three = await bench.submit(table(3))
    await bench.run()
    assert [array.tolist() for array in one.result().arrays] == [table(0.1)["x"].tolist()]
    assert [array.dtype.str for array in two.result().arrays] == ["<f4", "<i8"]
    assert two.result().arrays[1].tolist() == [2]
    assert three.result().arrays[0].tolist() == [3]
    assert servable.run_rows == [1, 3]


async def test_g11_requests_are_grouped_by_the_rest_of_their_shape_and_by_type() -> None:
    """Rows of different widths or types never share a run, and the rare width does not starve."""
    servable = FakeServable()
    bench = Bench(servable)
    await bench.submit(table(0))
    wide = np.ones((1, 20), np.float32)
    narrow = np.ones((1, 16), np.float32)
    tasks = []
    for array in (narrow, wide, narrow, narrow.astype(np.float64), narrow, wide):
        tasks.append(await bench.submit({"x": array}))
    await bench.run()
    assert [run["x"].shape for run in servable.runs] == [(1, 4), (3, 16), (2, 20), (1, 16)]
    assert [task.result().arrays[0].shape[1] for task in tasks] == [16, 20, 16, 16, 16, 20]


async def test_g13_a_version_that_is_not_batchable_runs_one_request_at_a_time() -> None:
    """Requests to it never share a run, and its outputs may have any first dimension."""
    servable = FakeServable(lambda inputs: [inputs["x"].sum(keepdims=True)])
    bench = Bench(servable, is_batchable=False)
    tasks = [await bench.submit(table(value, value)) for value in range(3)]
    await bench.run()
    assert servable.run_rows == [2, 2, 2]
    assert [task.result().arrays[0].tolist() for task in tasks] == [[[8.0 * v]] for v in range(3)]


async def test_g16_a_version_with_a_constant_output_gives_it_whole_to_each() -> None:
    """Not batchable, it never splits a constant whose length happens to be that of a batch."""
    servable = FakeServable(lambda _: [np.array([1.0, 2.0])])
    bench = Bench(servable, is_batchable=False)
    tasks = [await bench.submit(table(value)) for value in range(3)]
    await bench.run()
    assert [task.result().arrays[0].tolist() for task in tasks] == [[1.0, 2.0]] * 3


async def test_g16_an_input_without_rows_keeps_its_request_alone() -> None:
    """A scalar beside the rows cannot be joined, so such a request shares no run."""
    servable = FakeServable(lambda inputs: [inputs["x"] * inputs["a"]])
    bench = Bench(servable)
    await bench.submit(table(0) | {"a": np.float32(1)})
    tasks = [await bench.submit(table(1) | {"a": np.float32(factor)}) for factor in (2, 3)]
    await bench.run()
    assert [firsts(task.result()) for task in tasks] == [[2], [3]]
    assert len(servable.runs) == 3


async def test_timing_counts_queue_and_run_apart() -> None:
    """Queue time is from submit to the start of the run that answered."""
    bench = Bench()
    first = await bench.submit(table(0))
    second = await bench.submit(table(1))
    bench.clock.advance_ms(3)
    bench.executor.run_next()
    await bench.settle()
    bench.clock.advance_ms(4)
    await bench.run()
    assert first.result().queue_ns == 3_000_000
    assert second.result().queue_ns == 7_000_000
    assert bench.counters.runs_under_way == 0


async def test_close_answers_what_is_here_and_refuses_what_comes() -> None:
    """A drain loses nothing: runs and queue end with answers, later submits are told so."""
    bench = Bench()
    tasks = [await bench.submit(table(value)) for value in range(3)]
    closing = asyncio.create_task(bench.batcher.close(5))
    await bench.settle()
    late = await bench.submit(table(9))
    await bench.run()
    await closing
    assert [firsts(task.result()) for task in tasks] == [[0], [1], [2]]
    with pytest.raises(NotReady, match="fraud/3 is being unloaded"):
        late.result()


async def test_g07_a_caller_who_leaves_between_two_runs_is_not_computed_again() -> None:
    """Of a batch that failed, only those who still wait are run again."""
    bench = Bench(poisoned(lambda value: value == 1, RunFailed("no")))
    await bench.submit(table(0))
    tasks = [await bench.submit(table(value)) for value in (1, 2, 3, 4)]
    bench.executor.run_next()
    await bench.settle()
    bench.executor.run_next()
    await bench.settle()
    tasks[3].cancel()
    await bench.run()
    assert bench.servable.run_rows == [1, 4, 2, 1, 1, 1]
    assert [firsts(task.result()) for task in tasks[1:3]] == [[2], [3]]


async def test_one_timer_keeps_all_deadlines() -> None:
    """Requests of different deadlines end each at its own, while a run goes on."""
    bench = Bench()
    await bench.submit(table(0))
    late = [await bench.submit(table(v), timeout_ms=v) for v in (3, 1, 2)]
    bench.clock.advance_ms(1)
    with pytest.raises(DeadlineExpired):
        await asyncio.wait_for(late[1], 5)
    assert not late[0].done()
    bench.clock.advance_ms(2)
    for task in (late[2], late[0]):
        with pytest.raises(DeadlineExpired):
            await asyncio.wait_for(task, 5)
    await bench.run()
    assert bench.servable.run_rows == [1]


async def test_requests_wait_for_company_only_where_they_are_told_to() -> None:
    """With a delay a run starts when it is over, or as soon as a batch is full."""
    bench = Bench(max_batch_rows=3)
    bench.batcher.apply(replace(bench.batcher.limits, max_delay_ms=60_000))
    tasks = [await bench.submit(table(v)) for v in range(2)]
    assert bench.executor.waiting == 0
    tasks.append(await bench.submit(table(2)))
    await bench.run()
    assert [firsts(task.result()) for task in tasks] == [[0], [1], [2]]
    assert bench.servable.run_rows == [3]


async def test_new_bounds_hold_at_once() -> None:
    """Batching off and a smaller queue take effect on what comes next, without a reload."""
    bench = Bench()
    first = await bench.submit(table(0))
    bench.batcher.apply(replace(bench.batcher.limits, queue_rows=2, is_merging=False))
    waiting = [await bench.submit(table(v)) for v in (1, 2)]
    refused = await bench.submit(table(3))
    with pytest.raises(QueueFull, match="2 of 2 rows"):
        refused.result()
    await bench.run()
    assert [firsts(task.result()) for task in (first, *waiting)] == [[0], [1], [2]]
    assert bench.servable.run_rows == [1, 1, 1]
    assert not bench.batcher.statistics().is_merging

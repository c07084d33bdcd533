"""The batcher, on a fake servable, a driven clock and a driven executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.errors import NotReady
from serving.data.batch_run import GroupKey
from serving.data.batcher import Batcher, BatchLimits, Policy, Result
from serving.data.run_policy import Cut
from serving.errors import DeadlineExpired, QueueFull
from tests.fakes import FakeCounters, FakeServable, ManualClock, ManualExecutor, table

FAR_NS = 10**15


class Bench:
    """A batcher with everything around it under the test's hand."""

    def __init__(
        self,
        servable: FakeServable | None = None,
        *,
        is_batchable: bool = True,
        queue_rows: int = 256,
        max_batch_rows: int = 32,
        max_run_s: float = 60.0,
        policy: Policy | None = None,
    ) -> None:
        self.servable = servable or FakeServable()
        self.clock = ManualClock()
        self.executor = ManualExecutor()
        self.counters = FakeCounters()
        self.batcher = Batcher(
            self.servable,
            name="fraud/3",
            is_batchable=is_batchable,
            limits=BatchLimits(queue_rows, max_batch_rows, max_run_s),
            counters=self.counters,
            executor=self.executor,
            policy=policy,
            clock=self.clock,
        )

    async def submit(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: tuple[str, ...] | None = None,
        timeout_ms: float = 10_000,
    ) -> asyncio.Task[Result]:
        """Submit and let the batcher see it."""
        rows = len(next(iter(inputs.values())))
        deadline_ns = self.clock.now_ns + int(timeout_ms * 1_000_000)
        task = asyncio.create_task(self.batcher.submit(inputs, rows, outputs, deadline_ns))
        await self.settle()
        return task

    async def run(self) -> None:
        """Let runs go on until none is left."""
        await self.settle()
        while self.executor.waiting:
            self.executor.run_next()
            await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def firsts(result: Result) -> list[float]:
    """Return the first number of each row of the first output."""
    return [float(row[0]) for row in result.arrays[0]]


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
        await bench.batcher.submit(table(1), 1, None, bench.clock.now_ns)
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


def poisoned(bad: Callable[[float], bool], error: Exception) -> FakeServable:
    """Return a servable that fails the whole run where one row is bad."""

    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        if any(bad(float(value)) for value in inputs["x"][:, 0]):
            raise error
        return [inputs["x"]]

    return FakeServable(compute)


async def test_g05_one_bad_member_fails_alone() -> None:
    """Of sixteen merged requests, fifteen are answered and the poisoned one gets its own error."""
    bench = Bench(poisoned(lambda value: value == 999, InputRefused("index 999 is out of range")))
    await bench.submit(table(0))
    values = [*range(1, 8), 999, *range(8, 16)]
    tasks = [await bench.submit(table(value)) for value in values]
    await bench.run()
    for value, task in zip(values, tasks, strict=True):
        if value == 999:
            with pytest.raises(InputRefused, match="index 999"):
                task.result()
        else:
            assert firsts(task.result()) == [value]
    # Halving finds it in two runs a level.
    assert len(bench.servable.runs) == 1 + 1 + 2 * 4


async def test_g05_all_bad_members_get_an_error_each() -> None:
    """Where all are bad, all fail, and the version goes on answering."""
    bench = Bench(poisoned(lambda value: value > 900, RunFailed("no")))
    await bench.submit(table(0))
    tasks = [await bench.submit(table(901 + value)) for value in range(5)]
    await bench.run()
    for task in tasks:
        with pytest.raises(RunFailed):
            task.result()
    good = await bench.submit(table(5))
    await bench.run()
    assert firsts(good.result()) == [5]


async def test_an_unplanned_error_reaches_the_caller_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What nobody planned is logged, and the caller learns only that the run failed."""
    bench = Bench(poisoned(lambda _: True, ValueError("secret /path")))
    task = await bench.submit(table(1))
    await bench.run()
    with pytest.raises(RunFailed, match=r"^the run of fraud/3 failed$"):
        task.result()
    assert "secret" in caplog.text


async def test_g01_a_model_that_loses_rows_gives_no_foreign_and_no_empty_answer() -> None:
    """A model that gives one row for any number is not merged any more; each gets its own row."""
    bench = Bench(FakeServable(lambda inputs: [inputs["x"][:1]]))
    await bench.submit(table(0))
    tasks = [await bench.submit(table(value)) for value in (1, 2, 3)]
    several = await bench.submit(table(8, 9))
    await bench.run()
    assert [firsts(task.result()) for task in tasks] == [[1], [2], [3]]
    with pytest.raises(RunFailed, match=r"output 'y' came back with shape \[1, 4\] for 2 rows"):
        several.result()
    assert not bench.batcher.statistics().is_merging


async def test_g01_a_wrong_number_of_outputs_is_an_error() -> None:
    """A run that gives fewer arrays than the signature has outputs answers nobody."""
    bench = Bench(FakeServable(lambda _: []))
    task = await bench.submit(table(1))
    await bench.run()
    with pytest.raises(RunFailed, match="0 outputs, its signature has 1"):
        task.result()


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


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two threads that are gone after the test."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


def threaded(
    servable: FakeServable, pool: ThreadPoolExecutor, max_run_s: float, run_slots: int = 1
) -> Batcher:
    limits = BatchLimits(64, 8, max_run_s, run_slots)
    return Batcher(
        servable,
        name="fraud/3",
        is_batchable=True,
        limits=limits,
        counters=FakeCounters(),
        executor=pool,
    )


async def test_f16_a_stuck_run_is_ended_and_the_others_are_answered(
    pool: ThreadPoolExecutor,
) -> None:
    """Past max_run_s the run ends with RunTerminated; what waited behind it is computed."""
    servable = FakeServable(hold=True)
    batcher = threaded(servable, pool, max_run_s=0.02)
    stuck = asyncio.create_task(batcher.submit(table(1), 1, None, FAR_NS * 10))
    await asyncio.to_thread(servable.entered.wait, 5)
    after = asyncio.create_task(batcher.submit(table(2), 1, None, FAR_NS * 10))
    with pytest.raises(RunTerminated, match=r"took longer than max_run_s 0\.02"):
        await stuck
    assert firsts(await after) == [2]


async def test_a_close_past_its_time_ends_the_run_and_fails_the_queue(
    pool: ThreadPoolExecutor,
) -> None:
    """After the drain time nothing is left under way, so that closing the servable is safe."""
    servable = FakeServable(hold=True)
    batcher = threaded(servable, pool, max_run_s=60)
    running = asyncio.create_task(batcher.submit(table(1), 1, None, FAR_NS * 10))
    await asyncio.to_thread(servable.entered.wait, 5)
    queued = asyncio.create_task(batcher.submit(table(2), 1, None, FAR_NS * 10))
    await asyncio.sleep(0)
    await batcher.close(0)
    with pytest.raises(RunTerminated):
        await running
    with pytest.raises(NotReady):
        await queued
    assert servable.under_way == 0


async def test_a_run_that_cannot_be_ended_frees_its_callers_and_is_told_of(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers get RunTerminated after a grace, and close says that the servable is in use."""
    monkeypatch.setattr("serving.data.run_slots.TERMINATE_GRACE_S", 0.02)
    servable = FakeServable(hold=True, is_deaf=True)
    batcher = threaded(servable, pool, max_run_s=0.02)
    stuck = asyncio.create_task(batcher.submit(table(1), 1, None, FAR_NS * 10))
    with pytest.raises(RunTerminated):
        await stuck
    assert batcher.statistics().oldest_run_s > 0
    with pytest.raises(TimeoutError, match="a run of fraud/3 could not be ended"):
        await batcher.close(0)
    servable.release()
    await batcher.close(5)


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


class Inline:
    """Runs everything on the loop, ``max_rows`` at a time; a row should take ``needed_ns``."""

    def __init__(self, max_rows: int = 32, needed_ns: float = 0.0) -> None:
        self.max_rows = max_rows
        self.needed_ns = needed_ns
        self.seen: list[tuple[int, int]] = []

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:
        return Cut(is_inline=True, max_rows=self.max_rows, max_members=waiting)

    def expected_ns(self, key: GroupKey, rows: int) -> float:
        return self.needed_ns * rows

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        self.seen.append((members, rows))


async def test_what_arrives_in_one_pass_of_the_loop_is_one_run_on_it() -> None:
    """Cheap requests share a run without a thread, a timer, or a wait."""
    policy = Inline()
    bench = Bench(policy=policy)
    tasks = [asyncio.create_task(bench.batcher.submit(table(v), 1, None, FAR_NS)) for v in range(5)]
    await bench.settle()
    assert [firsts(task.result()) for task in tasks] == [[v] for v in range(5)]
    assert (bench.servable.run_rows, bench.executor.waiting) == ([5], 0)
    assert policy.seen == [(5, 5)]


async def test_an_inline_batch_is_capped_and_the_rest_follows() -> None:
    """Rows above the cap wait for the next run, in order."""
    bench = Bench(policy=Inline(max_rows=3))
    tasks = [asyncio.create_task(bench.batcher.submit(table(v), 1, None, FAR_NS)) for v in range(7)]
    await bench.settle()
    assert [firsts(task.result()) for task in tasks] == [[v] for v in range(7)]
    assert bench.servable.run_rows == [3, 3, 1]


async def test_an_inline_batch_that_fails_goes_on_in_a_thread() -> None:
    """Finding the bad row takes several runs, which must not keep the loop."""
    servable = poisoned(lambda value: value == 2, InputRefused("index"))
    bench = Bench(servable, policy=Inline())
    tasks = [asyncio.create_task(bench.batcher.submit(table(v), 1, None, FAR_NS)) for v in range(4)]
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
    tasks = [asyncio.create_task(bench.batcher.submit(table(v), 1, None, soon)) for v in range(2)]
    tasks.append(asyncio.create_task(bench.batcher.submit(table(2), 1, None, FAR_NS)))
    await bench.settle()
    for task in tasks[:2]:
        with pytest.raises(DeadlineExpired):
            task.result()
    assert firsts(tasks[2].result()) == [2]
    # Alone, the same request is tried: the estimate may be wrong.
    alone = await bench.submit(table(3), timeout_ms=4)
    assert firsts(alone.result()) == [3]


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


async def test_an_answer_that_cannot_be_handed_over_harms_no_neighbour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What goes wrong in one caller's callback stays there."""
    bench = Bench(policy=Inline())

    def broken(_: object) -> None:
        raise RuntimeError("gone")

    bench.batcher.enqueue(table(1), 1, None, FAR_NS, broken)
    good = await bench.submit(table(2))
    assert firsts(good.result()) == [2]
    assert "could not be handed over" in caplog.text

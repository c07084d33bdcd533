"""What goes wrong in a run harms nobody but its cause: bad members, stuck runs, bad answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.errors import InputRefused, RunFailed, RunTerminated
from registry.errors import NotReady
from serving.data.batch_calls import enqueue, submit
from serving.data.batcher import Batcher, BatchLimits
from tests.fakes import FakeCounters, FakeServable, table
from tests.unit.serving.batch_bench import FAR_NS, Bench, Inline, firsts, poisoned


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
    stuck = asyncio.create_task(submit(batcher, table(1), 1, None, FAR_NS * 10))
    await asyncio.to_thread(servable.entered.wait, 5)
    after = asyncio.create_task(submit(batcher, table(2), 1, None, FAR_NS * 10))
    with pytest.raises(RunTerminated, match=r"took longer than max_run_s 0\.02"):
        await stuck
    assert firsts(await after) == [2]


async def test_a_close_past_its_time_ends_the_run_and_fails_the_queue(
    pool: ThreadPoolExecutor,
) -> None:
    """After the drain time nothing is left under way, so that closing the servable is safe."""
    servable = FakeServable(hold=True)
    batcher = threaded(servable, pool, max_run_s=60)
    running = asyncio.create_task(submit(batcher, table(1), 1, None, FAR_NS * 10))
    await asyncio.to_thread(servable.entered.wait, 5)
    queued = asyncio.create_task(submit(batcher, table(2), 1, None, FAR_NS * 10))
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
    stuck = asyncio.create_task(submit(batcher, table(1), 1, None, FAR_NS * 10))
    with pytest.raises(RunTerminated):
        await stuck
    assert batcher.statistics().oldest_run_s > 0
    with pytest.raises(TimeoutError, match="a run of fraud/3 could not be ended"):
        await batcher.close(0)
    servable.release()
    await batcher.close(5)


async def test_an_answer_that_cannot_be_handed_over_harms_no_neighbour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What goes wrong in one caller's callback stays there."""
    bench = Bench(policy=Inline())

    def broken(_: object) -> None:
        raise RuntimeError("gone")

    enqueue(bench.batcher, table(1), 1, None, FAR_NS, broken)
    good = await bench.submit(table(2))
    assert firsts(good.result()) == [2]
    assert "could not be handed over" in caplog.text

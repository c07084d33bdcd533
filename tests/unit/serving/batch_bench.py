"""A batcher with everything around it under the test's hand, for the tests of batching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from models.servable import Array
from serving.data.batch_calls import Result, submit
from serving.data.batch_run import GroupKey
from serving.data.batcher import Batcher, BatchLimits, Policy
from serving.data.run_policy import Cut
from tests.fakes import FakeCounters, FakeServable, ManualClock, ManualExecutor

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
        queue_ms: int = 0,
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
            limits=BatchLimits(queue_rows, max_batch_rows, max_run_s, queue_ms=queue_ms),
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
        task = asyncio.create_task(submit(self.batcher, inputs, rows, outputs, deadline_ns))
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


def poisoned(bad: Callable[[float], bool], error: Exception) -> FakeServable:
    """Return a servable that fails the whole run where one row is bad."""

    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        if any(bad(float(value)) for value in inputs["x"][:, 0]):
            raise error
        return [inputs["x"]]

    return FakeServable(compute)


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

"""The batcher under any order of arrivals, departures, expiries and failures, on a driven clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array
from registry.errors import NotReady
from serving.data.batch_calls import Result, submit
from serving.data.batch_run import GroupKey
from serving.data.batcher import Batcher, BatchLimits
from serving.data.run_policy import Cut
from serving.errors import DeadlineExpired, QueueFull
from tests.fakes import FakeCounters, FakeServable, ManualClock, ManualExecutor

QUEUE_ROWS = 16
MAX_BATCH_ROWS = 8
POISON = -1.0


class DrivenLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the driven clock, so that every run can be repeated."""

    def __init__(self, clock: ManualClock) -> None:
        self._driven = clock
        super().__init__()

    def time(self) -> float:
        return self._driven.now_ns / 1e9


class DrawnPolicy:
    """Says what hypothesis drew: every decision may be any, and rows must be right all the same."""

    def __init__(self) -> None:
        self.next = Cut(is_inline=False, max_rows=MAX_BATCH_ROWS, max_members=99)
        self.needed_ns = 0.0

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:
        return self.next

    def expected_ns(self, key: GroupKey, rows: int) -> float:
        return self.needed_ns

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        assert (members, rows) >= (1, 1)


@dataclass
class Sent:
    """One submit: what it sent, what may become of it."""

    task: asyncio.Task[Result]
    values: Array
    is_poisoned: bool
    deadline_ns: int
    was_cancelled: bool = False


class BatcherMachine(RuleBasedStateMachine):
    """Every row carries a number of its own, so that a row that is swapped or lost shows."""

    @initialize(is_batchable=st.booleans(), slots=st.integers(1, 2))
    def start(self, is_batchable: bool, slots: int) -> None:
        self.clock = ManualClock()
        self.loop = DrivenLoop(self.clock)
        self.executor = ManualExecutor()
        self.counters = FakeCounters()
        self.servable = FakeServable(self.compute)
        self.fails_next = False
        self.is_closed = False
        self.serial = 0
        self.sent: list[Sent] = []
        self.is_batchable = is_batchable
        self.policy = DrawnPolicy()
        self.batcher = Batcher(
            self.servable,
            name="m/1",
            is_batchable=is_batchable,
            limits=BatchLimits(QUEUE_ROWS, MAX_BATCH_ROWS, 60.0, slots),
            counters=self.counters,
            executor=self.executor,
            policy=self.policy,
            clock=self.clock,
        )
        self.told_too_much: list[Any] = []
        self.watch_outcomes()

    def watch_outcomes(self) -> None:
        """Note what is told twice, or after its caller left: a caller's future would hide both."""
        admit = self.batcher.admit

        def watched(member: Any) -> None:
            outcomes = []
            done = member._done

            def told(outcome: Any) -> None:
                outcomes.append(outcome)
                if len(outcomes) > 1 or member in self.left:
                    self.told_too_much.append(outcomes)
                done(outcome)

            member._done = told
            admit(member)

        drop = self.batcher.drop

        def dropped(member: Any) -> None:
            self.left.add(member)
            drop(member)

        self.left: set[Any] = set()
        self.batcher.admit = watched
        self.batcher.drop = dropped

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Fail where a row is poisoned, or where the test said so; else give everything back."""
        rows = inputs["x"]
        assert len(rows) <= MAX_BATCH_ROWS or self.is_one_request(rows)
        if self.fails_next:
            self.fails_next = False
            raise RunFailed("now and then")
        if (rows == POISON).any():
            raise InputRefused("poisoned")
        return [rows * 2]

    def is_one_request(self, rows: Array) -> bool:
        return any(np.array_equal(sent.values, rows) for sent in self.sent)

    def settle(self) -> None:
        async def passes() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(passes())

    @rule(
        rows=st.sampled_from([1, 2, 0, 3, 9]),
        width=st.sampled_from([2, 2, 2, 3]),
        is_poisoned=st.sampled_from([False, False, False, True]),
        timeout_ms=st.sampled_from([1000, 1000, 5, 1]),
    )
    def submit(self, rows: int, width: int, is_poisoned: bool, timeout_ms: int) -> None:
        self.add(rows, width, is_poisoned, timeout_ms)
        self.settle()

    def add(self, rows: int, width: int, is_poisoned: bool, timeout_ms: int) -> None:
        start = self.serial
        self.serial += rows * width
        values = np.arange(start, self.serial, dtype=np.float64).reshape(rows, width)
        is_poisoned = is_poisoned and rows > 0
        if is_poisoned:
            values[-1, 0] = POISON
        deadline_ns = self.clock.now_ns + timeout_ms * 1_000_000
        work = submit(self.batcher, {"x": values}, rows, None, deadline_ns)
        task = self.loop.create_task(work)
        self.sent.append(Sent(task, values, is_poisoned, deadline_ns))

    @rule(
        rows=st.lists(st.integers(1, 3), min_size=2, max_size=4),
        bad=st.sampled_from([-1, -1, 0, 1]),
    )
    def submit_several(self, rows: list[int], bad: int) -> None:
        for index, count in enumerate(rows):
            self.submit(count, 2, index == bad, 1000)

    @rule(data=st.data())
    @precondition(lambda self: any(not sent.task.done() for sent in self.sent))
    def leave(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from([s for s in self.sent if not s.task.done()]))
        sent.was_cancelled = True
        sent.task.cancel()
        self.settle()

    @rule()
    @precondition(lambda self: self.executor.waiting)
    def run(self) -> None:
        self.executor.run_next()
        self.settle()

    @rule()
    @precondition(lambda self: self.executor.waiting)
    def run_and_fail(self) -> None:
        self.fails_next = True
        self.executor.run_next()
        self.fails_next = False
        self.settle()

    @rule(
        is_inline=st.booleans(),
        max_rows=st.sampled_from([1, 3, MAX_BATCH_ROWS]),
        max_members=st.sampled_from([1, 2, 99]),
        needed_ms=st.sampled_from([0, 0, 2]),
    )
    def decide(self, is_inline: bool, max_rows: int, max_members: int, needed_ms: int) -> None:
        self.policy.next = Cut(is_inline, max_rows, max_members)
        self.policy.needed_ns = needed_ms * 1e6

    @rule(
        rows=st.lists(st.integers(0, 3), min_size=2, max_size=6),
        bad=st.integers(-3, 5),
        gone=st.integers(-3, 5),
        is_failing=st.booleans(),
    )
    def arrive_together(self, rows: list[int], bad: int, gone: int, is_failing: bool) -> None:
        """Submit in one pass of the loop, one of them leaving before the flush."""
        self.fails_next = is_failing
        for index, count in enumerate(rows):
            self.add(count, 2, index == bad, 1000)
        if 0 <= gone < len(rows):
            sent = self.sent[-len(rows) :][gone]
            sent.was_cancelled = True
            self.loop.call_soon(sent.task.cancel)
        self.settle()
        self.fails_next = False

    @rule(milliseconds=st.sampled_from([1, 4, 10]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance_ms(milliseconds)
        self.settle()

    @rule()
    @precondition(lambda self: len(self.sent) > 12)
    def close(self) -> None:
        self.is_closed = True
        closing = self.loop.create_task(self.batcher.close(60))
        self.settle()
        while not closing.done():
            if self.executor.waiting:
                self.executor.run_next()
            self.settle()
        closing.result()
        assert all(sent.task.done() for sent in self.sent)

    @invariant()
    def queue_is_bounded(self) -> None:
        statistics = self.batcher.statistics()
        assert statistics.queued_rows == self.counters.queue_depth >= 0
        assert statistics.queued_rows <= QUEUE_ROWS or statistics.queued_requests == 1

    @invariant()
    def nobody_is_told_twice(self) -> None:
        assert self.told_too_much == []

    @invariant()
    def what_ended_ended_rightly(self) -> None:
        for sent in self.sent:
            if sent.task.done():
                self.check(sent)

    def check(self, sent: Sent) -> None:
        if sent.task.cancelled():
            assert sent.was_cancelled
            return
        error: Any = sent.task.exception()
        if error is None:
            # Its own rows, all of them, in order, and nobody else's.
            np.testing.assert_array_equal(sent.task.result().arrays[0], sent.values * 2)
            assert not sent.is_poisoned
        elif isinstance(error, InputRefused):
            assert sent.is_poisoned
        elif isinstance(error, DeadlineExpired):
            assert self.clock.now_ns >= sent.deadline_ns - 2_000_000
        elif isinstance(error, NotReady):
            assert self.is_closed
        else:
            assert isinstance(error, QueueFull | RunFailed)
            assert not isinstance(error, RunTerminated)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        while self.executor.waiting:
            self.executor.run_next()
            self.settle()
        # Nothing is lost: whatever was sent has ended, and nothing is left behind.
        assert all(sent.task.done() for sent in self.sent)
        self.what_ended_ended_rightly()
        statistics = self.batcher.statistics()
        assert (statistics.queued_requests, statistics.queued_rows, statistics.runs) == (0, 0, 0)
        assert self.counters.runs_under_way == 0
        # A run that gave answers was counted with all its rows, and none of them was empty-handed.
        assert all(rows >= 0 for rows in self.counters.batches)
        self.loop.close()


BatcherMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestBatcherRules = pytest.mark.slow(BatcherMachine.TestCase)

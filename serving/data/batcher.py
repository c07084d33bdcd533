"""The batcher: a bounded queue before one version, whose requests share runs where they may.

A run slot is taken first and the batch is cut from the queue only then, so a batch is as large as
the wait made it and an idle version adds no delay. All state belongs to the event loop; only
``batch_run.compute`` is called in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array, Servable
from registry.errors import NotReady
from serving.data.batch_run import GroupKey, RowsMismatch, RunTiming, compute, group_key
from serving.errors import DeadlineExpired, QueueFull

_log = logging.getLogger(__name__)

# How long a run may go on after it was told to end, before its callers get their answer anyway.
TERMINATE_GRACE_S: Final = 2.0
NS: Final = 1_000_000_000


class BatchCounters(Protocol):
    """What the batcher counts, all from the event loop's thread; ``VersionCounters`` is one."""

    queue_depth: int

    def run_started(self) -> None:
        """Say that the version computes from now on."""
        ...

    def run_ended(self) -> None:
        """Say that a run is over, however it ended."""
        ...

    def batch_done(self, rows: int, infer_ns: int, input_ns: int, output_ns: int) -> None:
        """Count one run that gave answers."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one version in one worker. ``run_slots``: runs under way at once."""

    queue_rows: int
    max_batch_rows: int
    max_run_s: float
    run_slots: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """One request's own outputs, in the order it asked for, and where its time went."""

    arrays: list[Array]
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """A snapshot: what waits, what runs, and how long the oldest run has been under way."""

    queued_requests: int
    queued_rows: int
    runs: int
    oldest_run_s: float
    is_merging: bool


@dataclass(slots=True, eq=False)
class _Member:
    """One submit on its way. ``future`` ends exactly once; a done one is skipped everywhere."""

    inputs: Mapping[str, Array]
    rows: int
    key: GroupKey
    serial: int
    future: asyncio.Future[Result]
    positions: Sequence[int] | None
    submitted_ns: int
    deadline_ns: int


@dataclass(slots=True, eq=False)
class _Run:
    """One call of the servable. ``started_ns`` is set by the thread when it really begins.

    ``is_overdue``: it was told to end. ``is_bystander``: another one was, which ends all of them.
    """

    members: Sequence[_Member]
    started_ns: int = 0
    is_overdue: bool = False
    is_bystander: bool = False
    timer: asyncio.TimerHandle | None = None


_Outcome: TypeAlias = tuple[list[list[Array]], RunTiming]


class Batcher:
    """Answers submits of one version.

    Guarantees: every submit ends exactly once, with its own rows, an error, or its cancellation;
    arrival order is kept within a shape, and the oldest request always leads the next batch; the
    queue never holds more than ``queue_rows`` rows (one larger request may wait alone); work
    whose caller left or whose deadline passed is not computed. Event-loop thread only.
    """

    def __init__(
        self,
        servable: Servable,
        *,
        name: str,
        is_batchable: bool,
        limits: BatchLimits,
        counters: BatchCounters,
        executor: Executor,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._servable = servable
        self._name = name
        self._is_batchable = is_batchable
        self._is_merging = is_batchable and limits.max_batch_rows > 1
        self._limits = limits
        self._counters = counters
        self._executor = executor
        self._clock = clock
        self._outputs = {spec.name: i for i, spec in enumerate(servable.signature.outputs)}
        # Dicts as ordered sets: a caller who leaves is taken out at once, and order is age.
        self._queue: dict[GroupKey, dict[_Member, None]] = {}
        self._queued_rows = 0
        self._queued_requests = 0
        self._serial = 0
        self._runs: set[_Run] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_batchable(self) -> bool:
        """Whether the version answers row by row, so that requests may share runs."""
        return self._is_batchable

    def statistics(self) -> BatcherStatistics:
        """Return what waits and runs now; a large ``oldest_run_s`` means a stuck run."""
        now = self._clock()
        started = [run.started_ns for run in self._runs if run.started_ns]
        return BatcherStatistics(
            queued_requests=self._queued_requests,
            queued_rows=self._queued_rows,
            runs=len(self._tasks),
            oldest_run_s=(now - min(started)) / NS if started else 0.0,
            is_merging=self._is_merging,
        )

    async def submit(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        outputs: tuple[str, ...] | None,
        deadline_ns: int,
    ) -> Result:
        """Compute ``outputs`` (default all) for ``rows`` rows before ``deadline_ns`` of the clock.

        Raises QueueFull, DeadlineExpired, InputRefused, RunFailed, RunTerminated, or NotReady
        after ``close``. Cancelling the caller takes the work out of the queue.
        """
        if self._is_closed:
            raise NotReady(f"{self._name} is being unloaded")
        now = self._clock()
        if now >= deadline_ns:
            raise DeadlineExpired(f"the deadline passed before {self._name} was asked")
        loop = asyncio.get_running_loop()
        self._serial += 1
        member = _Member(
            inputs=inputs,
            rows=rows,
            key=group_key(inputs, rows) if self._is_batchable else (),
            serial=self._serial,
            future=loop.create_future(),
            positions=None if outputs is None else [self._outputs[name] for name in outputs],
            submitted_ns=now,
            deadline_ns=deadline_ns,
        )
        self._enqueue(member)
        timer = loop.call_later((deadline_ns - now) / NS, self._on_deadline, member)
        self._dispatch()
        try:
            return await member.future
        finally:
            timer.cancel()
            # Of a caller that was cancelled, what still waits is dropped; what runs, runs in vain.
            self._dequeue(member)
            if member.future.done() and not member.future.cancelled():
                # An error that came in the same moment as the cancellation is nobody's any more.
                member.future.exception()

    async def close(self, timeout_s: float) -> None:
        """Refuse new work and wait for what is here; past ``timeout_s`` end it.

        Returns when no run is under way, so that the servable may be closed. Raises TimeoutError
        where a run goes on all the same: closing the servable under it would crash the process.
        """
        self._is_closed = True
        await self._ended(timeout_s)
        if not self._tasks:
            return
        for queued in list(self._queue.values()):
            for member in list(queued):
                self._fail(member, NotReady(f"{self._name} was unloaded before its turn"))
        for run in self._runs:
            run.is_overdue = True
        self._servable.terminate()
        await self._ended(TERMINATE_GRACE_S)
        if self._tasks:
            raise TimeoutError(f"a run of {self._name} could not be ended")

    async def _ended(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        # A run that ends may start the next one, hence the loop.
        while self._tasks and (left_s := end - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)

    def _enqueue(self, member: _Member) -> None:
        # Where nothing waits, a request larger than the whole queue may, or it never could.
        if self._queued_rows and self._queued_rows + _places(member) > self._limits.queue_rows:
            raise QueueFull(
                f"queue full: {self._queued_rows} of {self._limits.queue_rows} rows "
                f"for {self._name}, no room for {member.rows} more"
            )
        self._queue.setdefault(member.key, {})[member] = None
        self._queued_requests += 1
        self._queued_rows += _places(member)
        self._counters.queue_depth = self._queued_rows

    def _dequeue(self, member: _Member) -> None:
        queued = self._queue.get(member.key)
        if queued is None or member not in queued:
            return
        del queued[member]
        if not queued:
            del self._queue[member.key]
        self._queued_requests -= 1
        self._queued_rows -= _places(member)
        self._counters.queue_depth = self._queued_rows

    def _dispatch(self) -> None:
        while self._queue and len(self._tasks) < self._limits.run_slots:
            if batch := self._cut():
                task = asyncio.get_running_loop().create_task(
                    self._answer(batch), name=f"run {self._name}"
                )
                self._tasks.add(task)
                task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._dispatch()

    def _cut(self) -> list[_Member]:
        """Take the oldest request and those of its shape that fit beside it, in order."""
        oldest = min(self._queue.values(), key=lambda queued: next(iter(queued)).serial)
        batch: list[_Member] = []
        rows = 0
        while oldest:
            member = next(iter(oldest))
            if batch and not self._fits(member, rows):
                break
            self._dequeue(member)
            if self._is_wanted(member):
                batch.append(member)
                rows += member.rows
        return batch

    def _fits(self, member: _Member, rows: int) -> bool:
        is_joinable = self._is_merging and member.key != ()
        return is_joinable and rows + member.rows <= self._limits.max_batch_rows

    def _is_wanted(self, member: _Member) -> bool:
        if not member.future.done() and self._clock() >= member.deadline_ns:
            self._expire(member)
        return not member.future.done()

    def _on_deadline(self, member: _Member) -> None:
        left_ns = member.deadline_ns - self._clock()
        if left_ns > 0 and not member.future.done():
            # The loop's clock ran ahead of ours.
            asyncio.get_running_loop().call_later(left_ns / NS, self._on_deadline, member)
        else:
            self._expire(member)

    def _expire(self, member: _Member) -> None:
        waited_ms = (self._clock() - member.submitted_ns) // 1_000_000
        self._fail(member, DeadlineExpired(f"no answer of {self._name} within {waited_ms} ms"))

    def _fail(self, member: _Member, error: Exception) -> None:
        self._dequeue(member)
        if not member.future.done():
            member.future.set_exception(error)

    async def _answer(self, batch: list[_Member]) -> None:
        """Run a batch; where it fails, run smaller parts, until each failing member is alone."""
        parts = [batch]
        while parts:
            part = [member for member in parts.pop() if self._is_wanted(member)]
            if not part:
                continue
            run = _Run(part)
            try:
                shares, timing = await self._run(run)
            except Exception as error:  # noqa: BLE001  a task boundary: every caller is told
                parts += reversed(self._after_failure(run, error))
            else:
                self._deliver(run, shares, timing)

    async def _run(self, run: _Run) -> _Outcome:
        loop = asyncio.get_running_loop()
        self._runs.add(run)
        run.timer = loop.call_later(self._limits.max_run_s, self._watch, run)
        self._counters.run_started()
        try:
            return await loop.run_in_executor(self._executor, self._compute, run)
        finally:
            run.timer.cancel()
            self._runs.discard(run)
            self._counters.run_ended()

    def _compute(self, run: _Run) -> _Outcome:
        run.started_ns = self._clock()
        members = [(member.inputs, member.rows) for member in run.members]
        return compute(self._servable, members, is_rowwise=self._is_batchable)

    def _watch(self, run: _Run) -> None:
        """End a run that takes too long; where it does not end, free its callers all the same."""
        loop = asyncio.get_running_loop()
        max_ns = int(self._limits.max_run_s * NS)
        # Not begun: it still waits for a thread.
        run_ns = self._clock() - run.started_ns if run.started_ns else 0
        if run.is_overdue:
            _log.error("a run of %s goes on although it was told to end", self._name)
            for member in run.members:
                self._fail(member, self._overdue())
        elif run_ns < max_ns:
            run.timer = loop.call_later((max_ns - run_ns) / NS, self._watch, run)
        else:
            run.is_overdue = True
            for other in self._runs - {run}:
                other.is_bystander = True
            run.timer = loop.call_later(TERMINATE_GRACE_S, self._watch, run)
            self._servable.terminate()

    def _after_failure(self, run: _Run, error: Exception) -> list[list[_Member]]:
        """Return what to run again, in order; a member that failed alone is told so."""
        part = list(run.members)
        is_ended = isinstance(error, RunTerminated)
        if isinstance(error, RowsMismatch) and self._is_merging:
            _log.error("requests of %s share no run any more: %s", self._name, error)
            self._is_merging = False
        if is_ended and run.is_bystander and not run.is_overdue:
            return [part]
        if len(part) == 1:
            self._fail(part[0], self._explained(error))
            return []
        if is_ended:
            # Halving would let one stuck member use up its time again at every step.
            return [[member] for member in part]
        middle = len(part) // 2
        return [part[:middle], part[middle:]]

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, RunTerminated):
            return self._overdue()
        if isinstance(error, RunFailed | InputRefused):
            return error
        _log.error("unplanned error in a run of %s", self._name, exc_info=error)
        return RunFailed(f"the run of {self._name} failed")

    def _overdue(self) -> RunTerminated:
        return RunTerminated(
            f"the run of {self._name} was ended: it took longer than max_run_s "
            f"{self._limits.max_run_s:g}"
        )

    def _deliver(self, run: _Run, shares: list[list[Array]], timing: RunTiming) -> None:
        rows = sum(member.rows for member in run.members)
        self._counters.batch_done(rows, timing.infer_ns, timing.input_ns, timing.output_ns)
        for member, arrays in zip(run.members, shares, strict=True):
            if member.future.done():
                continue
            chosen = arrays if member.positions is None else [arrays[i] for i in member.positions]
            member.future.set_result(
                Result(
                    arrays=chosen,
                    queue_ns=run.started_ns - member.submitted_ns,
                    input_ns=timing.input_ns,
                    infer_ns=timing.infer_ns,
                    output_ns=timing.output_ns,
                )
            )


def _places(member: _Member) -> int:
    # A request of no rows takes a place all the same, or the queue had no bound.
    return max(member.rows, 1)

"""The batcher: a bounded queue before one version, whose requests share runs where they may.

A submit wakes the flush, which the event loop calls once it has looked at all connections: what
arrived in one pass is there together, and nothing was delayed for it. The flush takes a run slot
first and cuts the batch from the queue only then, so a batch is as large as the wait made it. A
cheap batch runs at once, on the loop; any other in a thread. All state belongs to the event loop;
only ``batch_run.compute`` is called in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array, Servable
from registry.errors import NotReady
from serving.data.batch_queue import BatchQueue, Done, Member, Outcome, Result
from serving.data.batch_run import GroupKey, RowsMismatch, RunTiming, compute, group_key
from serving.data.run_policy import FLUSH_NS, Cut
from serving.data.run_pool import PriorityExecutor
from serving.errors import DeadlineExpired, QueueFull

__all__ = ["BatchLimits", "Batcher", "BatcherStatistics", "Member", "Result"]

_log = logging.getLogger(__name__)

# How long a run may go on after it was told to end, before its callers get their answer anyway.
TERMINATE_GRACE_S: Final = 2.0
NS: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
# Deadlines that lie closer together than this are looked at together.
_DEADLINE_STEP_NS: Final = NS_PER_MS
_NEVER_NS: Final = 2**63
_Computed: TypeAlias = tuple[list[list[Array]], RunTiming]


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


class Policy(Protocol):
    """Decides where and how large runs are; ``RunPolicy`` is one."""

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:
        """Return what a run led by a request of ``rows`` rows may be, with ``waiting`` like it."""
        ...

    def expected_ns(self, key: GroupKey, rows: int) -> float:
        """Return what a run should take; 0 where too little is known."""
        ...

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        """Take what a run took."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one version in one worker.

    ``run_slots``: runs under way at once. ``max_delay_ms``: how long the first request may wait for
    others to share its run; 0: only for what arrives with it. ``is_merging``: requests may share.
    """

    queue_rows: int
    max_batch_rows: int
    max_run_s: float
    run_slots: int = 1
    max_delay_ms: float = 0.0
    is_merging: bool = True


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """A snapshot: what waits, what runs, and how long the oldest run has been under way."""

    queued_requests: int
    queued_rows: int
    runs: int
    oldest_run_s: float
    is_merging: bool


class _Threads:
    """The policy without measurements: everything in a thread, batches as large as they may be."""

    def __init__(self, max_batch_rows: int) -> None:
        self._max_batch_rows = max_batch_rows

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:  # noqa: ARG002 - the protocol's
        return Cut(is_inline=False, max_rows=self._max_batch_rows, max_members=waiting)

    def expected_ns(self, key: GroupKey, rows: int) -> float:  # noqa: ARG002 - the protocol's
        return 0.0

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        pass


class _Run:
    """One call of the servable. ``started_ns`` is set by the thread when it really begins.

    ``parts``: what the slot runs after it. ``is_overdue``: it was told to end. ``is_bystander``:
    another one was, which ends all of them.
    """

    __slots__ = ("is_bystander", "is_overdue", "members", "parts", "started_ns", "timer")

    def __init__(self, members: Sequence[Member], parts: list[list[Member]]) -> None:
        self.members = members
        self.parts = parts
        self.started_ns = 0
        self.is_overdue = False
        self.is_bystander = False
        self.timer: asyncio.TimerHandle | None = None


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
        policy: Policy | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._servable = servable
        self._name = name
        self._is_batchable = is_batchable
        self._loses_rows = False
        self._limits = limits
        self._counters = counters
        self._executor = executor
        self._policy = policy or _Threads(limits.max_batch_rows)
        self._clock = clock
        self._outputs = {spec.name: i for i, spec in enumerate(servable.signature.outputs)}
        self._queue = BatchQueue()
        self._runs: set[_Run] = set()
        self._busy = 0
        self._is_woken = False
        self._delay: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._became_idle = asyncio.Event()
        # One timer for the earliest deadline of all that is here, never one for each request.
        self._earliest_ns = _NEVER_NS
        self._armed_ns = _NEVER_NS
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_batchable(self) -> bool:
        """Whether the version answers row by row, so that requests may share runs."""
        return self._is_batchable

    @property
    def limits(self) -> BatchLimits:
        """The bounds that hold now."""
        return self._limits

    def apply(self, limits: BatchLimits, *, priority: int = 0) -> None:
        """Take new bounds, from the next submit and the next run on; higher priority runs first."""
        self._limits = limits
        if isinstance(self._executor, PriorityExecutor):
            self._executor.priority = priority

    def statistics(self) -> BatcherStatistics:
        """Return what waits and runs now; a large ``oldest_run_s`` means a stuck run."""
        now = self._clock()
        started = [run.started_ns for run in self._runs if run.started_ns]
        return BatcherStatistics(
            queued_requests=self._queue.requests,
            queued_rows=self._queue.rows,
            runs=self._busy,
            oldest_run_s=(now - min(started)) / NS if started else 0.0,
            is_merging=self._is_merging,
        )

    @property
    def _is_merging(self) -> bool:
        return (
            self._is_batchable
            and not self._loses_rows
            and self._limits.is_merging
            and self._limits.max_batch_rows > 1
        )

    async def submit(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        outputs: tuple[str, ...] | None,
        deadline_ns: int,
    ) -> Result:
        """Compute as ``enqueue`` does, and wait for it.

        Raises what ``enqueue`` raises and hands over. Cancelling the caller takes the work out of
        the queue; what runs already, runs in vain.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        member = self.enqueue(inputs, rows, outputs, deadline_ns, done)
        try:
            outcome = await future
        finally:
            self.drop(member)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def enqueue(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        outputs: tuple[str, ...] | None,
        deadline_ns: int,
        done: Done,
        key: GroupKey | None = None,
    ) -> Member:
        """Compute ``outputs`` (default all) for ``rows`` rows before ``deadline_ns`` of the clock.

        ``done`` gets the result or the error, from the loop and never before this returns.
        ``key``: what ``group_key`` would say, from a caller who knows.
        Raises QueueFull, DeadlineExpired, or NotReady after ``close``; hands over DeadlineExpired,
        InputRefused, RunFailed, RunTerminated or NotReady.
        """
        if self._is_closed:
            raise NotReady(f"{self._name} is being unloaded")
        now_ns = self._clock()
        if now_ns >= deadline_ns:
            raise DeadlineExpired(f"the deadline passed before {self._name} was asked")
        queue, limit = self._queue, self._limits.queue_rows
        # Where nothing waits, a request larger than the whole queue may, or it never could.
        if queue.requests and queue.rows + (rows or 1) > limit:
            raise QueueFull(
                f"queue full: {queue.rows} of {limit} rows for {self._name}, "
                f"no room for {rows} more"
            )
        if not self._is_batchable:
            key = ()
        elif key is None:
            key = group_key(inputs, rows)
        positions = None if outputs is None else [self._outputs[name] for name in outputs]
        member = Member(inputs, rows, key, positions, done, now_ns, deadline_ns)
        queue.add(member)
        if deadline_ns < self._earliest_ns:
            self._earliest_ns = deadline_ns
        self._wake()
        return member

    def drop(self, member: Member) -> None:
        """Forget a submit whose caller left: it is not computed any more, nor told anything."""
        if not member.is_over:
            member.is_over = True
            self._leave_queue(member)

    async def close(self, timeout_s: float) -> None:
        """Refuse new work and wait for what is here; past ``timeout_s`` end it.

        Returns when no run is under way, so that the servable may be closed. Raises TimeoutError
        where a run goes on all the same: closing the servable under it would crash the process.
        """
        self._is_closed = True
        await self._ended(timeout_s)
        for member in list(self._queue):
            self._end(member, NotReady(f"{self._name} was unloaded before its turn"))
        if self._busy:
            for run in self._runs:
                run.is_overdue = True
            self._servable.terminate()
            await self._ended(TERMINATE_GRACE_S)
        if self._timer is not None:
            self._timer.cancel()
        if self._busy:
            raise TimeoutError(f"a run of {self._name} could not be ended")

    async def _ended(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._busy or self._queue:
                    self._became_idle.clear()
                    await self._became_idle.wait()
        except TimeoutError:
            return

    def _leave_queue(self, member: Member) -> None:
        self._queue.remove(member)
        self._counters.queue_depth = self._queue.rows
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._is_closed and not self._busy and not self._queue:
            self._became_idle.set()

    def _wake(self) -> None:
        if self._is_woken:
            if self._delay is not None:
                self._counters.queue_depth = self._queue.rows
                if self._queue.rows >= self._limits.max_batch_rows:
                    self._flush_soon()
            return
        if self._busy >= self._limits.run_slots:
            # Nothing will look at the queue before a run ends, and a deadline may be sooner.
            self._counters.queue_depth = self._queue.rows
            self._arm()
        elif self._limits.max_delay_ms and self._is_merging:
            self._is_woken = True
            delay_s = self._limits.max_delay_ms / 1000
            self._delay = self._running_loop().call_later(delay_s, self._flush)
            self._counters.queue_depth = self._queue.rows
            self._arm()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        self._is_woken = True
        self._running_loop().call_soon(self._flush)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _flush(self) -> None:
        """Run what waits, as far as there are slots and as this pass of the loop allows."""
        self._is_woken = False
        self._delay = None
        end_ns = 0
        while self._queue and self._busy < self._limits.run_slots:
            now_ns = time.perf_counter_ns()
            if not end_ns:
                end_ns = now_ns + FLUSH_NS
            elif now_ns >= end_ns:
                self._flush_soon()
                break
            batch, is_inline = self._cut()
            if not batch:
                continue
            if is_inline:
                self._run_inline(batch)
            else:
                self._busy += 1
                self._go_on([batch])
        if self._queue:
            self._arm()
        else:
            self._tell_idle()

    def _cut(self) -> tuple[list[Member], bool]:
        """Take the oldest request and those of its shape that fit beside it, in order."""
        oldest = self._queue.oldest()
        key = oldest.key
        waiting = len(self._queue.group(key)) if key != () and self._is_merging else 1
        cut = self._policy.cut(key, oldest.rows, waiting)
        max_rows = min(cut.max_rows, self._limits.max_batch_rows)
        members = self._queue.take(key, max_rows, cut.max_members)
        self._counters.queue_depth = self._queue.rows
        now_ns = self._clock()
        needed_ns = 0.0
        if len(members) > 1 or self._queue:
            rows = sum([member.rows for member in members])
            needed_ns = self._policy.expected_ns(key, rows)
        return self._in_time(members, now_ns, needed_ns), cut.is_inline

    def _in_time(self, members: list[Member], now_ns: int, needed_ns: float) -> list[Member]:
        """Return those whose answer can be in time after a run of ``needed_ns``; end the others.

        Of a backlog the oldest are always nearly late, and computing those would leave no time for
        any that is not. Where nobody is left otherwise, what is not late yet is tried all the same,
        so that an estimate that is wrong corrects itself.
        """
        end_ns = now_ns + needed_ns
        kept = [m for m in members if m.deadline_ns > end_ns and not m.is_over]
        if len(kept) == len(members):
            return kept
        if not kept and not self._queue:
            kept = [m for m in members if m.deadline_ns > now_ns and not m.is_over]
        staying = set(kept)
        for member in members:
            if member not in staying and not member.is_over:
                self._expire(member, now_ns)
        return kept

    def _arm(self) -> None:
        """See to it that the earliest deadline is looked at, if it is not soon enough already."""
        if self._earliest_ns >= self._armed_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = self._earliest_ns
        left_s = max(0, self._armed_ns - self._clock()) / NS
        self._timer = self._running_loop().call_later(left_s, self._on_deadline)

    def _on_deadline(self) -> None:
        """End what is late, waiting or running, and look again at the next deadline."""
        self._timer = None
        self._armed_ns = self._earliest_ns = _NEVER_NS
        now_ns = self._clock()
        running = [member for run in self._runs for part in (run.members, *run.parts)
                   for member in part]  # fmt: skip
        for member in [*self._queue, *running]:
            if member.is_over:
                continue
            if member.deadline_ns <= now_ns:
                self._expire(member, now_ns)
            elif member.deadline_ns < self._earliest_ns:
                self._earliest_ns = max(member.deadline_ns, now_ns + _DEADLINE_STEP_NS)
        if self._earliest_ns < _NEVER_NS:
            self._arm()

    def _expire(self, member: Member, now_ns: int) -> None:
        waited_ms = (now_ns - member.submitted_ns) // NS_PER_MS
        self._end(member, DeadlineExpired(f"no answer of {self._name} within {waited_ms} ms"))

    def _end(self, member: Member, outcome: Outcome) -> None:
        if member.is_over:
            return
        self._leave_queue(member)
        member.is_over = True
        try:
            member.done(outcome)
        except Exception:  # noqa: BLE001
            # One caller's trouble with its answer must not reach the others of its batch.
            _log.exception("an answer of %s could not be handed over", self._name)

    def _run_inline(self, batch: list[Member]) -> None:
        """Run a batch on the loop. Where it fails, threads go on with it: that may take longer."""
        run = _Run(batch, [])
        self._counters.run_started()
        try:
            shares, timing = self._compute(run)
        except Exception as error:  # noqa: BLE001  a boundary: every caller is told
            self._counters.run_ended()
            self._busy += 1
            self._go_on(list(reversed(self._after_failure(run, error))))
        else:
            self._counters.run_ended()
            self._deliver(run, shares, timing)

    def _go_on(self, parts: list[list[Member]]) -> None:
        """Run the last of ``parts`` in the slot that the caller holds, or give the slot back."""
        while parts:
            if part := self._in_time(parts.pop(), self._clock(), 0):
                self._start(_Run(part, parts))
                return
        self._busy -= 1
        if self._queue and not self._is_woken:
            self._flush_soon()
        elif not self._queue:
            self._tell_idle()

    def _start(self, run: _Run) -> None:
        loop = self._running_loop()
        self._runs.add(run)
        run.timer = loop.call_later(self._limits.max_run_s, self._watch, run)
        self._counters.run_started()
        future: asyncio.Future[_Computed]
        try:
            future = loop.run_in_executor(self._executor, self._compute, run)
        except RuntimeError as error:
            # No thread to be had: its callers are told so like of any other failure.
            future = loop.create_future()
            future.set_exception(error)
        future.add_done_callback(partial(self._on_end, run))
        self._earliest_ns = min(self._earliest_ns, *(m.deadline_ns for m in run.members))
        self._arm()

    def _on_end(self, run: _Run, future: asyncio.Future[_Computed]) -> None:
        if run.timer is not None:
            run.timer.cancel()
        self._runs.discard(run)
        self._counters.run_ended()
        try:
            shares, timing = future.result()
        except Exception as error:  # noqa: BLE001  a boundary: every caller is told
            run.parts += reversed(self._after_failure(run, error))
        else:
            self._deliver(run, shares, timing)
        self._go_on(run.parts)

    def _compute(self, run: _Run) -> _Computed:
        run.started_ns = self._clock()
        members = [(member.inputs, member.rows) for member in run.members]
        return compute(self._servable, members, is_rowwise=self._is_batchable)

    def _watch(self, run: _Run) -> None:
        """End a run that takes too long; where it does not end, free its callers all the same."""
        loop = self._running_loop()
        max_ns = int(self._limits.max_run_s * NS)
        # Not begun: it still waits for a thread.
        run_ns = self._clock() - run.started_ns if run.started_ns else 0
        if run.is_overdue:
            _log.error("a run of %s goes on although it was told to end", self._name)
            for member in run.members:
                self._end(member, self._overdue())
        elif run_ns < max_ns:
            run.timer = loop.call_later((max_ns - run_ns) / NS, self._watch, run)
        else:
            run.is_overdue = True
            for other in self._runs - {run}:
                other.is_bystander = True
            run.timer = loop.call_later(TERMINATE_GRACE_S, self._watch, run)
            self._servable.terminate()

    def _after_failure(self, run: _Run, error: Exception) -> list[list[Member]]:
        """Return what to run again, in order; a member that failed alone is told so."""
        part = list(run.members)
        is_ended = isinstance(error, RunTerminated)
        if isinstance(error, RowsMismatch) and self._is_merging:
            _log.error("requests of %s share no run any more: %s", self._name, error)
            self._loses_rows = True
        if is_ended and run.is_bystander and not run.is_overdue:
            return [part]
        if len(part) == 1:
            self._end(part[0], self._explained(error))
            return []
        if is_ended:
            # Halving would let one stuck member use up its time again at every step.
            return [[member] for member in part]
        middle = len(part) // 2
        return [part[:middle], part[middle:]]

    def _explained(self, error: Exception) -> InputRefused | RunFailed | RunTerminated:
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
        members = run.members
        rows = sum([member.rows for member in members])
        input_ns, infer_ns, output_ns = timing
        self._counters.batch_done(rows, infer_ns, input_ns, output_ns)
        if rows:
            run_ns = input_ns + infer_ns + output_ns
            self._policy.measured(members[0].key, len(members), rows, run_ns)
        started_ns = run.started_ns
        for member, arrays in zip(members, shares, strict=True):
            if member.is_over:
                continue
            member.is_over = True
            positions = member.positions
            result = Result(
                arrays if positions is None else [arrays[i] for i in positions],
                started_ns - member.submitted_ns,
                input_ns,
                infer_ns,
                output_ns,
                rows,
            )
            try:
                member.done(result)
            except Exception:  # noqa: BLE001  as in _end
                _log.exception("an answer of %s could not be handed over", self._name)

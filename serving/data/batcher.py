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
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from models.servable import Array, Servable
from registry.errors import NotReady
from serving.data import run_slots
from serving.data.batch_queue import BatchQueue, Failure, Member, RunResult
from serving.data.batch_run import RowsMismatch, RunTiming
from serving.data.batch_terms import (
    BatchCounters,
    BatcherStatistics,
    BatchLimits,
    Policy,
    Unmeasured,
)
from serving.data.queue_pace import QueuePace
from serving.data.run_policy import FLUSH_NS
from serving.data.run_pool import PriorityExecutor
from serving.data.run_slots import Run, RunSlots
from serving.errors import DeadlineExpired, QueueFull

__all__ = ["BatchLimits", "Batcher", "BatcherStatistics", "Member", "Policy"]

_log = logging.getLogger(__name__)

NS: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
# Deadlines that lie closer together than this are looked at together.
_DEADLINE_STEP_NS: Final = NS_PER_MS
_NEVER_NS: Final = 2**63
# So many requests may wait however slow a version is: a pace that is not known yet, or was measured
# in a bad moment, corrects itself only by runs.
ALWAYS_REQUESTS: Final = 16


class Batcher:
    """Answers submits of one version.

    Guarantees: every submit ends exactly once, with its own rows, an error, or its cancellation;
    arrival order is kept within a shape, and the oldest request always leads the next batch; the
    queue never holds more than ``queue_rows`` rows (one larger request may wait alone), nor more
    than is worked off in ``queue_ms`` once its pace is known; work whose caller left or whose
    deadline passed is not computed. Event-loop thread only.
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
        self._name = name
        # Whether the version answers row by row, so that requests may share runs.
        self.is_batchable: Final = is_batchable
        self._loses_rows = False
        self._limits = limits
        self._is_merging = self._may_merge()
        self._counters = counters
        self._executor = executor
        self._policy = policy or Unmeasured(limits.max_batch_rows)
        self._clock = clock
        self._outputs = {spec.name: i for i, spec in enumerate(servable.signature.outputs)}
        self._queue = BatchQueue()
        # Whether a single row was refused and the queue has not become shorter since.
        self.is_full = False
        self._pace = QueuePace()
        self._room_rows = limits.queue_rows
        self._slots = RunSlots(
            self,
            servable,
            name=name,
            is_rowwise=is_batchable,
            counters=counters,
            executor=executor,
            clock=clock,
        )
        self._is_woken = self._is_depth_shown = False
        self._delay: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._became_idle = asyncio.Event()
        # One timer for the earliest deadline of all that is here, never one for each request.
        self._earliest_ns = _NEVER_NS
        self._armed_ns = _NEVER_NS
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def limits(self) -> BatchLimits:
        """The bounds that hold now."""
        return self._limits

    def apply(self, limits: BatchLimits, *, priority: int = 0) -> None:
        """Take new bounds, from the next submit and the next run on; higher priority runs first."""
        self._limits = limits
        self._measure_room()
        self._is_merging = self._may_merge()
        if isinstance(self._executor, PriorityExecutor):
            self._executor.priority = priority

    def statistics(self) -> BatcherStatistics:
        """Return what waits and runs now; a large ``oldest_run_s`` means a stuck run."""
        return BatcherStatistics(
            queued_requests=self._queue.requests,
            queued_rows=self._queue.rows,
            runs=self._slots.busy,
            oldest_run_s=self._slots.oldest_s(),
            is_merging=self._is_merging,
        )

    def _may_merge(self) -> bool:
        return (
            self.is_batchable
            and not self._loses_rows
            and self._limits.is_merging
            and self._limits.max_batch_rows > 1
        )

    def positions_of(self, outputs: Sequence[str]) -> list[int]:
        """Return where outputs stand in what a run gives."""
        return [self._outputs[name] for name in outputs]

    def admit(self, member: Member) -> None:
        """Compute for a member, which says all but when it was submitted, before its deadline.

        The member is told how it ended from the loop, and never before this returns.
        Raises QueueFull, DeadlineExpired, or NotReady after ``close``; hands over DeadlineExpired,
        InputRefused, RunFailed, RunTerminated or NotReady.
        """
        if self._is_closed:
            raise NotReady(f"{self._name} is being unloaded")
        now_ns = self._clock()
        deadline_ns, rows = member.deadline_ns, member.rows
        if now_ns >= deadline_ns:
            raise DeadlineExpired(f"the deadline passed before {self._name} was asked")
        queue = self._queue
        if queue.rows + (rows or 1) > self._room_rows and queue.requests:
            self.refuse_full(rows)
        member.submitted_ns = now_ns
        member.is_over = False
        queue.add(member)
        if deadline_ns < self._earliest_ns:
            self._earliest_ns = deadline_ns
        if not self._is_woken or self._delay is not None:
            self._wake()

    def refuse_full(self, rows: int = 1) -> None:
        """Raise QueueFull where ``rows`` more may not wait now."""
        queue, limits = self._queue, self._limits
        after = queue.rows + (rows or 1)
        self.is_full = False
        # Where nothing waits, a request larger than the whole queue may, or it never could.
        if after <= self._room_rows or not queue.requests:
            return
        if after > limits.queue_rows:
            why = f"{queue.rows} of {limits.queue_rows} rows for {self._name}"
        elif queue.requests >= ALWAYS_REQUESTS:
            why = (
                f"{queue.rows} rows wait for {self._name}, which works off {self._room_rows} in "
                f"queue_ms {limits.queue_ms}"
            )
        else:
            return
        # The next one is told so before its body is read.
        self.is_full = rows <= 1
        raise QueueFull(f"queue full: {why}, no room for {rows} more")

    def _measure_room(self) -> None:
        limits = self._limits
        self.is_full = False
        self._room_rows = limits.queue_rows
        if limits.queue_ms:
            in_time = self._pace.rows_within(limits.queue_ms * NS_PER_MS)
            self._room_rows = min(in_time, limits.queue_rows)

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
            self.end(member, NotReady(f"{self._name} was unloaded before its turn"))
        if self._slots.busy:
            self._slots.terminate()
            await self._ended(run_slots.TERMINATE_GRACE_S)
        if self._timer is not None:
            self._timer.cancel()
        if self._slots.busy:
            raise TimeoutError(f"a run of {self._name} could not be ended")

    async def _ended(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._slots.busy or self._queue:
                    self._became_idle.clear()
                    await self._became_idle.wait()
        except TimeoutError:
            return

    def _leave_queue(self, member: Member) -> None:
        self._queue.remove(member)
        self._show_depth()
        self._tell_idle()

    def _show_depth(self) -> None:
        self.is_full = False
        rows = self._queue.rows
        self._counters.queue_depth = rows
        self._is_depth_shown = rows > 0

    def _tell_idle(self) -> None:
        if self._is_closed and not self._slots.busy and not self._queue:
            self._became_idle.set()

    def _wake(self) -> None:
        if self._is_woken:
            if self._delay is not None:
                self._show_depth()
                if self._queue.rows >= self._limits.max_batch_rows:
                    self._flush_soon()
            return
        if self._slots.busy >= self._limits.run_slots:
            # Nothing will look at the queue before a run ends, and a deadline may be sooner.
            self._show_depth()
            self._arm()
        elif self._limits.max_delay_ms and self._is_merging:
            self._is_woken = True
            delay_s = self._limits.max_delay_ms / 1000
            self._delay = self._running_loop().call_later(delay_s, self._flush)
            self._show_depth()
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
        while self._queue and self._slots.busy < self._limits.run_slots:
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
                self._slots.run_inline(batch)
            else:
                self._slots.run_in_thread(batch)
        if self._queue:
            self._arm()
        else:
            self._tell_idle()

    def _cut(self) -> tuple[list[Member], bool]:
        """Take the oldest request and those of its shape that fit beside it, in order."""
        queue = self._queue
        oldest = queue.oldest()
        key = oldest.key
        waiting = len(queue.group(key)) if key and self._is_merging else 1
        cut = self._policy.cut(key, oldest.rows, waiting)
        max_rows = min(cut.max_rows, self._limits.max_batch_rows)
        members = queue.take(key, max_rows, cut.max_members)
        # What came in this pass of the loop alone was not shown: the page is as it was.
        if self._is_depth_shown or queue.requests:
            self._show_depth()
        now_ns = self._clock()
        needed_ns = 0.0
        if len(members) > 1 or queue.requests:
            rows = sum([member.rows for member in members])
            needed_ns = self._policy.expected_ns(key, rows)
        return self.in_time(members, now_ns, needed_ns), cut.is_inline

    def in_time(self, members: list[Member], now_ns: int, needed_ns: float) -> list[Member]:
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
        for member in [*self._queue, *self._slots.members()]:
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
        self.end(member, DeadlineExpired(f"no answer of {self._name} after {waited_ms} ms"))

    def end(self, member: Member, error: Failure) -> None:
        """Tell a member how it ended, if it did not end before; for the slots."""
        if member.is_over:
            return
        self._leave_queue(member)
        member.is_over = True
        try:
            member.failed(error)
        except Exception:  # noqa: BLE001
            # One caller's trouble with its answer must not reach the others of its batch.
            _log.exception("an answer of %s could not be handed over", self._name)

    def run_begun(self, members: Sequence[Member]) -> None:
        """Look at the deadlines of members that wait for a run in a thread; for the slots."""
        self._earliest_ns = min(self._earliest_ns, *(member.deadline_ns for member in members))
        self._arm()

    def slot_freed(self) -> None:
        """Go on with what waits; for the slots."""
        if self._queue and not self._is_woken:
            self._flush_soon()
        elif not self._queue:
            self._tell_idle()

    def rows_lost(self, error: RowsMismatch) -> None:
        """Merge no more requests of a version that does not answer row by row; for the slots."""
        if self._is_merging:
            _log.error("requests of %s share no run any more: %s", self._name, error)
            self._loses_rows = True
            self._is_merging = False

    def deliver(self, run: Run, arrays: list[Array], timing: RunTiming) -> None:
        """Give each member of a run its rows; for the slots."""
        members, rows = run.members, run.rows
        input_ns, infer_ns, output_ns, cpu_ns, missing, unseen = timing
        self._counters.batch_done(rows, infer_ns, input_ns, output_ns, cpu_ns, missing, unseen)
        run_ns = input_ns + infer_ns + output_ns
        if rows:
            self._policy.measured(members[0].key, len(members), rows, run_ns)
        waiting = self._queue.requests
        self._pace.worked_off(run.started_ns + run_ns, rows or 1, is_backlogged=waiting > 0)
        if waiting:
            self._measure_room()
        # Who has a run alone is counted before the answer is sent, so that the client finds it
        # counted; those who share one are counted together, once all are told.
        is_shared = len(members) > 1
        result = RunResult(arrays, rows, run.started_ns, input_ns, infer_ns, output_ns, is_shared)
        end = 0
        for member in members:
            start = end
            end = start + member.rows
            if member.is_over:
                continue
            member.is_over = True
            try:
                member.computed(result, start, end)
            except Exception:  # noqa: BLE001  as in end
                _log.exception("an answer of %s could not be handed over", self._name)
        if not is_shared:
            return
        result.is_open = False
        if result.total_ns:
            self._counters.requests_answered(
                result.answered_rows, result.total_ns, result.queue_ns,
                (input_ns, infer_ns, output_ns),
            )  # fmt: skip

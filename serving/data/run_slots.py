"""The runs of one version that are under way: started, watched, taken apart where they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeAlias

from models.errors import InputRefused, RunFailed, RunTerminated
from models.servable import Array, Servable
from serving.data.batch_queue import Failure, Member
from serving.data.batch_run import RowsMismatch, RunTiming, compute
from serving.data.batch_terms import BatchCounters, BatchLimits
from serving.data.input_look import InputLook

_log = logging.getLogger(__name__)

# How long a run may go on after it was told to end, before its callers get their answer anyway.
TERMINATE_GRACE_S: Final = 2.0
NS: Final = 1_000_000_000
Computed: TypeAlias = tuple[list[Array], RunTiming]


class Run:
    """One call of the servable. ``started_ns`` is set by the thread when it really begins.

    ``parts``: what the slot runs after it. ``is_overdue``: it was told to end. ``is_bystander``:
    another one was, which ends all of them.
    """

    __slots__ = ("is_bystander", "is_overdue", "members", "parts", "rows", "started_ns", "timer")

    def __init__(self, members: Sequence[Member], parts: list[list[Member]]) -> None:
        self.members = members
        self.rows = sum([member.rows for member in members])
        self.parts = parts
        self.started_ns = 0
        self.is_overdue = False
        self.is_bystander = False
        self.timer: asyncio.TimerHandle | None = None


class SlotOwner(Protocol):
    """Whose members run; the batcher is one."""

    @property
    def limits(self) -> BatchLimits:
        """The bounds that hold now."""
        ...

    def in_time(self, members: list[Member], now_ns: int, needed_ns: float) -> list[Member]:
        """Return those to compute; the others end."""
        ...

    def end(self, member: Member, error: Failure) -> None:
        """Tell a member how it ended."""
        ...

    def deliver(self, run: Run, arrays: list[Array], timing: RunTiming) -> None:
        """Give each member of a run its rows."""
        ...

    def run_begun(self, members: Sequence[Member]) -> None:
        """Take note that members wait for a run in a thread."""
        ...

    def rows_lost(self, error: RowsMismatch) -> None:
        """Take note that the version does not answer row by row."""
        ...

    def slot_freed(self) -> None:
        """Take note that another run may start."""
        ...


class RunSlots:
    """Computes batches, on the loop or in threads. Event-loop thread only.

    ``busy``: slots that are taken. A slot goes on with the parts of a batch that failed.
    """

    def __init__(
        self,
        owner: SlotOwner,
        servable: Servable,
        *,
        name: str,
        is_rowwise: bool,
        counters: BatchCounters,
        executor: Executor,
        clock: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._servable = servable
        self._name = name
        self._is_rowwise = is_rowwise
        self._look = InputLook(servable.signature)
        self._counters = counters
        self._executor = executor
        self._clock = clock
        self.busy = 0
        self.runs: set[Run] = set()

    def oldest_s(self) -> float:
        """Return how long the oldest run has been under way, in seconds."""
        started = [run.started_ns for run in self.runs if run.started_ns]
        return (self._clock() - min(started)) / NS if started else 0.0

    def members(self) -> list[Member]:
        """Return who waits for a run that is under way, or for the next part of one."""
        return [m for run in self.runs for part in (run.members, *run.parts) for m in part]

    def run_in_thread(self, batch: list[Member]) -> None:
        """Take a slot for a batch."""
        self.busy += 1
        self.go_on([batch])

    def run_inline(self, batch: list[Member]) -> None:
        """Run a batch on the loop. Where it fails, threads go on with it: that may take longer."""
        run = Run(batch, [])
        self._counters.run_started()
        try:
            arrays, timing = self._compute(run)
        except Exception as error:  # noqa: BLE001  a boundary: every caller is told
            self._counters.run_ended()
            self.busy += 1
            self.go_on(list(reversed(self._after_failure(run, error))))
        else:
            self._counters.run_ended()
            self._owner.deliver(run, arrays, timing)

    def terminate(self) -> None:
        """End all runs under way."""
        for run in self.runs:
            run.is_overdue = True
        self._servable.terminate()

    def go_on(self, parts: list[list[Member]]) -> None:
        """Run the last of ``parts`` in the slot that the caller holds, or give the slot back."""
        while parts:
            if part := self._owner.in_time(parts.pop(), self._clock(), 0):
                self._start(Run(part, parts))
                return
        self.busy -= 1
        self._owner.slot_freed()

    def _start(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        self.runs.add(run)
        run.timer = loop.call_later(self._owner.limits.max_run_s, self._watch, run)
        self._counters.run_started()
        future: asyncio.Future[Computed]
        try:
            future = loop.run_in_executor(self._executor, self._compute, run)
        except RuntimeError as error:
            # No thread to be had: its callers are told so like of any other failure.
            future = loop.create_future()
            future.set_exception(error)
        future.add_done_callback(partial(self._on_end, run))
        self._owner.run_begun(run.members)

    def _on_end(self, run: Run, future: asyncio.Future[Computed]) -> None:
        if run.timer is not None:
            run.timer.cancel()
        self.runs.discard(run)
        self._counters.run_ended()
        try:
            arrays, timing = future.result()
        except Exception as error:  # noqa: BLE001  a boundary: every caller is told
            run.parts += reversed(self._after_failure(run, error))
        else:
            self._owner.deliver(run, arrays, timing)
        self.go_on(run.parts)

    def _compute(self, run: Run) -> Computed:
        run.started_ns = self._clock()
        requests = [member.inputs for member in run.members]
        return compute(
            self._servable, requests, run.rows, is_rowwise=self._is_rowwise, look=self._look
        )

    def _watch(self, run: Run) -> None:
        """End a run that takes too long; where it does not end, free its callers all the same."""
        loop = asyncio.get_running_loop()
        max_ns = int(self._owner.limits.max_run_s * NS)
        # Not begun: it still waits for a thread.
        run_ns = self._clock() - run.started_ns if run.started_ns else 0
        if run.is_overdue:
            _log.error("a run of %s goes on although it was told to end", self._name)
            for member in run.members:
                self._owner.end(member, self._overdue())
        elif run_ns < max_ns:
            run.timer = loop.call_later((max_ns - run_ns) / NS, self._watch, run)
        else:
            run.is_overdue = True
            for other in self.runs - {run}:
                other.is_bystander = True
            run.timer = loop.call_later(TERMINATE_GRACE_S, self._watch, run)
            self._servable.terminate()

    def _after_failure(self, run: Run, error: Exception) -> list[list[Member]]:
        """Return what to run again, in order; a member that failed alone is told so."""
        part = list(run.members)
        is_ended = isinstance(error, RunTerminated)
        if isinstance(error, RowsMismatch):
            self._owner.rows_lost(error)
        if is_ended and run.is_bystander and not run.is_overdue:
            return [part]
        if len(part) == 1:
            self._owner.end(part[0], self._explained(error))
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
            f"{self._owner.limits.max_run_s:g}"
        )

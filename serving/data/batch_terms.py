"""What a batcher is told and what it tells: bounds, counters, policy, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.data.batch_run import GroupKey
from serving.data.run_policy import Cut


class BatchCounters(Protocol):
    """What the batcher counts, all from the event loop's thread; ``VersionCounters`` is one."""

    queue_depth: int

    def run_started(self) -> None:
        """Say that the version computes from now on."""
        ...

    def run_ended(self) -> None:
        """Say that a run is over, however it ended."""
        ...

    def requests_answered(
        self,
        rows: int,
        total_ns: Sequence[int],
        queue_ns: Sequence[int],
        parts_ns: tuple[int, int, int],
    ) -> None:
        """Count the requests that a run answered, whose members left that to the batcher."""
        ...

    def batch_done(
        self,
        rows: int,
        infer_ns: int,
        input_ns: int,
        output_ns: int,
        cpu_ns: int,
        missing_values: int,
        unseen_categories: int,
    ) -> None:
        """Count one run that gave answers, what it cost, and what its inputs lacked."""
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
    ``queue_ms``: milliseconds of work that may wait, by the pace so far; 0: only ``queue_rows``
    bounds what waits.
    """

    queue_rows: int
    max_batch_rows: int
    max_run_s: float
    run_slots: int = 1
    max_delay_ms: float = 0.0
    is_merging: bool = True
    queue_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """A snapshot: what waits, what runs, and how long the oldest run has been under way."""

    queued_requests: int
    queued_rows: int
    runs: int
    oldest_run_s: float
    is_merging: bool


class Unmeasured:
    """The policy without measurements: everything in a thread, batches as large as they may be."""

    def __init__(self, max_batch_rows: int) -> None:
        self._max_batch_rows = max_batch_rows

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:  # noqa: ARG002 - the protocol's
        """Return the largest batch."""
        return Cut(is_inline=False, max_rows=self._max_batch_rows, max_members=waiting)

    def expected_ns(self, key: GroupKey, rows: int) -> float:  # noqa: ARG002 - the protocol's
        """Return that nothing is known."""
        return 0.0

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        """Learn nothing."""

"""How fast a queue is worked off, measured while something waits, and so how long waiting takes.

What a run takes says less: slots share cores with each other, with the event loop and with other
versions, and that is in here.
"""

from __future__ import annotations

from typing import Final

# Rows of one run count this much less after each further run.
_DECAY: Final = 0.97
_TRUSTED_RUNS: Final = 4
# One interval that the system interrupted says little about the pace.
_OUTLIER: Final = 8.0
NO_BOUND: Final = 1 << 62


class QueuePace:
    """The pace of one version's queue in one worker. Times are nanoseconds of one clock."""

    __slots__ = ("_ns", "_rows", "_runs", "_since_ns")

    def __init__(self) -> None:
        self._runs = 0
        self._rows = self._ns = 0.0
        self._since_ns = 0

    def worked_off(self, end_ns: int, rows: int, *, is_backlogged: bool) -> None:
        """Take note of ``rows`` that a run answered which ended at ``end_ns``.

        ``is_backlogged``: others wait, so that until the next run ends no slot is idle. An interval
        that began without them says nothing.
        """
        since_ns, self._since_ns = self._since_ns, end_ns if is_backlogged else 0
        if not since_ns:
            return
        took_ns = float(max(0, end_ns - since_ns))
        if self._runs >= _TRUSTED_RUNS and self._rows:
            took_ns = min(took_ns, _OUTLIER * rows * self._ns / self._rows)
        self._runs += 1
        self._rows = self._rows * _DECAY + rows
        self._ns = self._ns * _DECAY + took_ns

    def rows_within(self, limit_ns: float) -> int:
        """Return how many rows are worked off in ``limit_ns``; NO_BOUND where that is not known."""
        if self._runs < _TRUSTED_RUNS or self._ns <= 0:
            return NO_BOUND
        return int(limit_ns * self._rows / self._ns)

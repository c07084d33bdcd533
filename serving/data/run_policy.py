"""How a version runs, decided from what its runs took: where, how many rows at once, merged or not.

Pure: it is told what was measured and answers questions. Times are nanoseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from models.computed import takes_texts_apart
from models.servable import Inspection
from models.signature import Signature
from registry.manifest import Manifest
from serving.data.batch_run import GroupKey

# A run on the event loop saves the way to a thread and back, and keeps everyone waiting meanwhile.
INLINE_NS: Final = 1_000_000
# A version leaves the loop only well above where it comes back, or noise would toss it about.
_LEAVE: Final = 2
# What one pass of the event loop may compute before it looks after its connections again.
FLUSH_NS: Final = 2_000_000
# A batch in a thread is the wait of whoever comes next, here or, on shared cores, elsewhere.
THREAD_BATCH_NS: Final = 50_000_000
# Rows of one run count this much less after each further run.
_DECAY: Final = 0.97
# One run that the system interrupted says nothing about the version; two in a row do.
_OUTLIER: Final = 8.0
_TRUSTED_RUNS: Final = 4
MIN_GAIN: Final = 0.10
# Merging that was given up comes back only for clearly more, or it would flicker.
_RETURN_GAIN: Final = 0.12
_FIRST_TRIAL: Final = 64
_LAST_TRIAL: Final = 4096
_TRIAL_MEMBERS: Final = 4
# Runs until the next trial after one that said something new.
_SOON: Final = 8
# Shapes that are told apart; an unknown one runs in a thread until it was measured.
_MAX_SHAPES: Final = 64


def has_one_shape(signature: Signature) -> bool:
    """Return whether requests to a version differ in their rows only.

    Texts do not count: what they cost depends on their length.
    """
    return all(
        spec.datatype != "BYTES" and all(size > 0 for size in spec.shape[1:])
        for spec in signature.inputs
    )


def may_inline(inspection: Inspection, manifest: Manifest) -> bool:
    """Return whether runs may take place on the event loop, where nothing could end them.

    Not where the time depends on more than shapes: on control flow, or on how long a text is.
    """
    if inspection.has_control_flow or takes_texts_apart(manifest):
        return False
    # Requests that are never merged are not told apart by shape.
    return has_one_shape(inspection.signature) or inspection.is_batchable


class RunCost:
    """What a run of n rows takes, by least squares over its latest runs: fixed + rows * each."""

    __slots__ = ("_line", "_w", "_x", "_xx", "_xy", "_y", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self._w = self._x = self._y = self._xx = self._xy = 0.0
        # Asked several times for each run, and the same until the next.
        self._line: tuple[float, float] | None = None

    def add(self, rows: int, run_ns: float) -> None:
        """Take a measurement; one far above what was expected counts as somewhat above it."""
        if self.runs >= _TRUSTED_RUNS:
            most_ns = _OUTLIER * max(self.expected_ns(rows), 1.0)
            if run_ns > most_ns:
                run_ns = most_ns
        self.runs += 1
        self._line = None
        self._w = self._w * _DECAY + 1
        self._x = self._x * _DECAY + rows
        self._y = self._y * _DECAY + run_ns
        self._xx = self._xx * _DECAY + rows * rows
        self._xy = self._xy * _DECAY + rows * run_ns

    def line(self) -> tuple[float, float]:
        """Return ``(fixed, each)`` in nanoseconds; all of it per row where sizes never differed."""
        if self._line is None:
            self._line = self._fitted()
        return self._line

    def _fitted(self) -> tuple[float, float]:
        if not self._w:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._w, self._y / self._w
        spread = self._xx / self._w - mean_x * mean_x
        if spread <= 0.01 * max(mean_x * mean_x, 1.0):
            return 0.0, mean_y / max(mean_x, 1.0)
        each = max(0.0, (self._xy / self._w - mean_x * mean_y) / spread)
        # A line through zero at least: a negative fixed part would promise runs for nothing.
        return (fixed, each) if (fixed := mean_y - each * mean_x) >= 0 else (0.0, mean_y / mean_x)

    def expected_ns(self, rows: int) -> float:
        """Return what a run of ``rows`` rows should take."""
        fixed, each = self._line or self.line()
        return fixed + each * rows

    def rows_within(self, limit_ns: float) -> int:
        """Return how many rows a run may have to take ``limit_ns`` at most; never under one."""
        fixed, each = self.line()
        return max(1, int((limit_ns - fixed) / each + 1e-6)) if each > 0 else 1 << 30


class MergeGain:
    """Whether requests that share a run take less time a row than alone; tried again now and then.

    Trials get rarer the more often they agree, so that they cost nothing that could be measured,
    and closer where one does not.
    """

    __slots__ = ("_alone_ns", "_alone_runs", "_is_trial", "_left", "_merged_ns", "_merged_runs",
                 "_trial", "is_merging")  # fmt: skip

    def __init__(self) -> None:
        self.is_merging = True
        self._is_trial = False
        self._alone_ns = self._merged_ns = 0.0
        self._alone_runs = self._merged_runs = 0
        self._trial = self._left = _FIRST_TRIAL

    def members(self, waiting: int) -> int:
        """Return how many of ``waiting`` requests the next run may take; asked once a run."""
        if waiting < 2:
            return 1
        self._left -= 1
        self._is_trial = self._left <= 0
        if self._is_trial:
            self._left = self._trial
        if self.is_merging is self._is_trial:
            return 1
        return _TRIAL_MEMBERS if self._is_trial else waiting

    def add(self, members: int, rows: int, run_ns: float) -> None:
        """Take a measurement of a run that ``members`` requests shared."""
        each_ns = run_ns / max(rows, 1)
        is_trial, self._is_trial = self._is_trial, False
        if members == 1:
            self._alone_ns = _blended(self._alone_ns, each_ns, self._alone_runs)
            self._alone_runs += 1
            alone_ns, merged_ns = each_ns, self._merged_ns
        else:
            self._merged_ns = _blended(self._merged_ns, each_ns, self._merged_runs)
            self._merged_runs += 1
            alone_ns, merged_ns = self._alone_ns, each_ns
        if min(self._alone_runs, self._merged_runs) < _TRUSTED_RUNS:
            if is_trial:
                self._left = _SOON
            return
        if is_trial:
            if self._gains(alone_ns, merged_ns) is self.is_merging:
                self._trial = min(2 * self._trial, _LAST_TRIAL)
                self._left = self._trial
            else:
                self._left = _SOON
        is_merging = self._gains(self._alone_ns, self._merged_ns)
        if is_merging != self.is_merging:
            self.is_merging = is_merging
            self._trial = self._left = _FIRST_TRIAL

    def _gains(self, alone_ns: float, merged_ns: float) -> bool:
        gain = 1 - merged_ns / max(alone_ns, 1.0)
        return gain >= (MIN_GAIN if self.is_merging else _RETURN_GAIN)


def _blended(old: float, new: float, runs: int) -> float:
    if runs < _TRUSTED_RUNS:
        return (old * runs + new) / (runs + 1)
    return old + 0.2 * (min(new, 4 * old) - old)


class _Shape:
    """What is known of requests of one shape beside the rows."""

    __slots__ = ("cost", "gains", "has_run", "is_inline")

    def __init__(self) -> None:
        self.cost = RunCost()
        # By the size of requests: single rows gain much where requests of many rows gain nothing.
        self.gains: dict[int, MergeGain] = {}
        self.is_inline = False
        # An inspection in another process is no proof that a run ends in this one.
        self.has_run = False

    def gain(self, rows: int) -> MergeGain:
        """Return what is known of requests of about ``rows`` rows: within a factor of two."""
        size = rows.bit_length()
        found = self.gains.get(size)
        if found is None:
            found = self.gains[size] = MergeGain()
        return found


class Cut(NamedTuple):
    """What the next run may be. ``max_rows``: an older request of more rows runs alone."""

    is_inline: bool
    max_rows: int
    max_members: int


class RunPolicy:
    """The decisions for one version.

    ``run_s``: what one row took when the version was inspected; 0: not known. ``may_inline``: False
    where a run might not end by itself, for on the loop nothing could end it. ``has_one_shape``:
    all inputs are fixed beside the rows, so that one measurement speaks for all requests.
    ``inline_ns``: a version whose row takes less may run on the loop; 0: none does.
    """

    def __init__(
        self,
        *,
        max_batch_rows: int,
        run_s: float = 0.0,
        may_inline: bool = False,
        has_one_shape: bool = False,
        inline_ns: float = INLINE_NS,
    ) -> None:
        self._max_batch_rows = max_batch_rows
        self._may_inline = may_inline
        self._inline_ns = inline_ns
        self._flush_ns = max(FLUSH_NS, _LEAVE * inline_ns)
        self._shapes: dict[GroupKey, _Shape] = {}
        self._only: _Shape | None = None
        if has_one_shape:
            self._only = _Shape()
            if run_s > 0:
                self._only.cost.add(1, run_s * 1e9)

    def cut(self, key: GroupKey, rows: int, waiting: int) -> Cut:
        """Return what a run led by a request of ``rows`` rows may be, with ``waiting`` like it."""
        shape = self._only or self._shapes.get(key)
        if shape is None or not shape.cost.runs:
            return Cut(False, self._max_batch_rows, waiting)
        cost = shape.cost
        fixed_ns, each_ns = cost.line()
        one_ns = fixed_ns + each_ns
        shape.is_inline = one_ns < self._inline_ns * (_LEAVE if shape.is_inline else 1)
        members = shape.gain(rows).members(waiting) if waiting > 1 else 1
        if (
            self._may_inline
            and shape.has_run
            and shape.is_inline
            and fixed_ns + each_ns * rows <= self._flush_ns
        ):
            if members == 1:
                return Cut(True, self._max_batch_rows, 1)
            return Cut(True, min(self._max_batch_rows, cost.rows_within(self._flush_ns)), members)
        limit_ns = max(THREAD_BATCH_NS, 4 * one_ns)
        return Cut(False, min(self._max_batch_rows, cost.rows_within(limit_ns)), members)

    def expected_ns(self, key: GroupKey, rows: int) -> float:
        """Return what a run should take; 0 where too little is known."""
        shape = self._only or self._shapes.get(key)
        if shape is None or shape.cost.runs < _TRUSTED_RUNS:
            return 0.0
        return shape.cost.expected_ns(rows)

    def measured(self, key: GroupKey, members: int, rows: int, run_ns: int) -> None:
        """Take what a run took that answered ``members`` requests."""
        shape = self._only or self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            shape = self._shapes[key] = _Shape()
        shape.has_run = True
        shape.cost.add(rows, run_ns)
        shape.gain(rows // members).add(members, rows, run_ns)

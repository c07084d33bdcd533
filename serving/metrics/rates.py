"""Turns two readings of the counters into rates and percentiles, one for each version.

Pure: who reads the counters, from shared memory or from the text of ``/metrics``, makes ``Counts``
of them. Percentiles come from the difference of two histograms, interpolated within a bucket as
PromQL's ``histogram_quantile`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from serving.metrics.layout import DURATION, DURATION_BOUNDS_S
from serving.metrics.reading import VersionKey, VersionNumbers

NO_DURATIONS: Final = (0,) * (len(DURATION_BOUNDS_S) + 1)


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted for one version since its counters began.

    ``by_code``: answered requests by status code. ``durations``: answers in each bucket of
    DURATION_BOUNDS_S, not cumulative, the last above all bounds.
    """

    by_code: Mapping[str, int] = field(default_factory=dict)
    durations: Sequence[int] = NO_DURATIONS

    @classmethod
    def of(cls, numbers: VersionNumbers) -> Counts:
        """Return the counts of a version's cells in shared memory."""
        return cls(numbers.by_code(), tuple(numbers.histogram(DURATION)[0]))


@dataclass(frozen=True, slots=True)
class Rates:
    """One version over a stretch of time; the percentiles are None where nothing was answered.

    ``refused_per_s``: answers of 400 to 499 and of rare codes; ``failed_per_s``: of 500 and more.
    ``p50_s``, ``p99_s``: the largest bound stands for everything above it.
    """

    requests_per_s: float = 0.0
    refused_per_s: float = 0.0
    failed_per_s: float = 0.0
    p50_s: float | None = None
    p99_s: float | None = None


def rates(
    before: Mapping[VersionKey, Counts], after: Mapping[VersionKey, Counts], seconds: float
) -> dict[VersionKey, Rates]:
    """Return the rates of every version in ``after``.

    One that is not in ``before`` was counted from zero. So was one whose counters fell: it was
    unloaded and loaded again, or another server answers now. ``seconds``: between the two readings.
    """
    if seconds <= 0:
        return {key: Rates() for key in after}
    return {key: _rates(grown(before.get(key, Counts()), now), seconds)
            for key, now in after.items()}  # fmt: skip


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum over versions, for the rates of a model or of the server."""
    by_code: dict[str, int] = {}
    durations = list(NO_DURATIONS)
    for item in counts:
        for code, count in item.by_code.items():
            by_code[code] = by_code.get(code, 0) + count
        durations = [a + b for a, b in zip(durations, item.durations, strict=True)]
    return Counts(by_code, durations)


def grown(before: Counts, after: Counts) -> Counts:
    """Return what was counted in between."""
    has_restarted = any(after.by_code.get(code, 0) < count
                        for code, count in before.by_code.items())  # fmt: skip
    if has_restarted:
        return after
    # A reader may catch a histogram between two cells of one request: never below nothing.
    return Counts(
        {code: n - before.by_code.get(code, 0) for code, n in after.by_code.items()},
        [max(0, b - a) for a, b in zip(before.durations, after.durations, strict=True)],
    )


def quantile(q: float, counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Return where a share ``q`` of what a histogram counted lies below, None where it is empty.

    ``counts``: one for each bound and one for above; the largest bound stands for all above it.
    """
    cumulative = list(accumulate(counts))
    if not cumulative or not cumulative[-1]:
        return None
    rank = q * cumulative[-1]
    for bucket, bound in enumerate(bounds):
        if cumulative[bucket] >= rank and counts[bucket]:
            low = bounds[bucket - 1] if bucket else 0.0
            below = cumulative[bucket] - counts[bucket]
            return low + (bound - low) * (rank - below) / counts[bucket]
    return bounds[-1]


def _rates(counts: Counts, seconds: float) -> Rates:
    failed = sum(n for code, n in counts.by_code.items() if code.startswith("5"))
    good = sum(n for code, n in counts.by_code.items() if code.startswith(("2", "3")))
    requests = sum(counts.by_code.values())
    return Rates(
        requests / seconds,
        (requests - failed - good) / seconds,
        failed / seconds,
        quantile(0.5, counts.durations, DURATION_BOUNDS_S),
        quantile(0.99, counts.durations, DURATION_BOUNDS_S),
    )

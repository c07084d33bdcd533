"""Latencies as an HdrHistogram: bounded memory, three significant digits, up to an hour."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogWriter

_HIGHEST_US: Final = 3_600_000_000
_EDGES_US: Final = [step * 10**power for power in range(11) for step in (1, 2, 5)]
_DIGITS: Final = 3
_QUANTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}


class Latencies:
    """Counts latencies in microseconds; what is under one counts as one."""

    def __init__(self, latencies_ns: Iterable[int] = ()) -> None:
        self._histogram = HdrHistogram(1, _HIGHEST_US, _DIGITS)
        for latency_ns in latencies_ns:
            self.add(latency_ns)

    def add(self, latency_ns: int) -> None:
        """Count one latency."""
        self._histogram.record_value(min(_HIGHEST_US, max(1, round(latency_ns / 1000))))

    def __len__(self) -> int:
        return int(self._histogram.get_total_count())

    def quantile_ms(self, percent: float) -> float | None:
        """Return the latency that ``percent`` of all stay within; None if none was counted."""
        if not len(self):
            return None
        return round(float(self._histogram.get_value_at_percentile(percent)) / 1000, 3)

    def summary(self) -> dict[str, float | int | None]:
        """Return the count, the usual quantiles, the mean and the largest, in milliseconds."""
        mean = round(self._histogram.get_mean_value() / 1000, 3) if len(self) else None
        quantiles = {name: self.quantile_ms(share) for name, share in _QUANTILES.items()}
        return {"count": len(self), **quantiles, "max_ms": self.quantile_ms(100.0), "mean_ms": mean}

    def curve(self, percents: Sequence[float]) -> list[float]:
        """Return the latency in milliseconds at each percent; empty if nothing was counted."""
        if not len(self):
            return []
        return [float(self._histogram.get_value_at_percentile(each)) / 1000 for each in percents]

    def buckets(self) -> list[dict[str, float | int]]:
        """Return counts by 1, 2, 5, 10, ... from the first bucket that has any to the last.

        ``to_ms`` is where a bucket ends.
        """
        counts: Counter[int] = Counter()
        for item in self._histogram.get_recorded_iterator():
            counts[bisect_left(_EDGES_US, item.value_iterated_to)] += int(
                item.count_at_value_iterated_to
            )
        return [
            {"to_ms": _EDGES_US[place] / 1000, "count": counts[place]}
            for place in range(min(counts, default=0), max(counts, default=-1) + 1)
        ]

    def write_log(self, path: Path, seconds: float) -> None:
        """Write one interval in the form of HdrHistogram's logs (``.hlog``), in microseconds."""
        with path.open("w", encoding="ascii") as file:
            writer = HistogramLogWriter(file)
            writer.output_comment("[latencies from the intended start, in microseconds]")
            writer.output_log_format_version()
            writer.output_legend()
            # A start of 0 is taken for none.
            writer.output_interval_histogram(self._histogram, 1e-6, seconds + 1e-6, 1000.0)

    def write_distribution(self, path: Path) -> None:
        """Write the form that HdrHistogram's plotters read (``.hgrm``), in milliseconds."""
        with path.open("wb") as file:
            self._histogram.output_percentile_distribution(file, 1000.0)

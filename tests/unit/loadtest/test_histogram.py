"""Latencies keep three digits, and nothing measured is None."""

from __future__ import annotations

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from loadtest.histogram import Latencies


def test_quantiles_of_known_latencies():
    """A hundred latencies of 1 to 100 ms have known quantiles, to three digits."""
    seen = Latencies(n * 1_000_000 for n in range(1, 101)).summary()
    assert seen["count"] == 100
    assert seen["p50_ms"] == pytest.approx(50, rel=1e-3)
    assert seen["p99_ms"] == pytest.approx(99, rel=1e-3)
    assert seen["max_ms"] == pytest.approx(100, rel=1e-3)
    assert seen["mean_ms"] == pytest.approx(50.5, rel=1e-3)


def test_nothing_measured_is_none():
    """An empty run has no quantile, and not one of zero."""
    assert Latencies().summary() == {
        "count": 0, "p50_ms": None, "p90_ms": None, "p99_ms": None, "p999_ms": None,
        "max_ms": None, "mean_ms": None,
    }  # fmt: skip


def test_extremes_are_counted_and_not_dropped():
    """What is under a microsecond or over an hour stays in the count."""
    assert len(Latencies([0, 1, 10**14])) == 3


def test_the_distribution_is_written_for_plotters(tmp_path):
    """The file has the columns of HdrHistogram's own tools."""
    Latencies([1_000_000] * 10).write_distribution(tmp_path / "run.hgrm")
    assert "Percentile TotalCount" in (tmp_path / "run.hgrm").read_text()


def test_the_log_is_read_back_by_hdrhistogram(tmp_path):
    """Other programs get the whole histogram, not only some quantiles."""
    Latencies(n * 1_000_000 for n in range(1, 101)).write_log(tmp_path / "run.hlog", 12.5)
    reader = HistogramLogReader(str(tmp_path / "run.hlog"), HdrHistogram(1, 3_600_000_000, 3))
    found = reader.get_next_interval_histogram()
    reader.close()
    assert found.get_total_count() == 100
    assert found.get_value_at_percentile(50) == pytest.approx(50_000, rel=1e-3)
    assert found.get_end_time_stamp() - found.get_start_time_stamp() == pytest.approx(12_500, abs=2)


def test_a_curve_rises_and_is_empty_without_latencies():
    """What is drawn is what was counted."""
    assert Latencies([1_000_000, 2_000_000]).curve([0.0, 100.0]) == pytest.approx([1, 2], rel=1e-2)
    assert Latencies().curve([50.0]) == []

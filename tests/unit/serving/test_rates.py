"""Rates and percentiles out of two readings of the counters."""

from __future__ import annotations

import pytest

from serving.metrics.layout import DURATION_BOUNDS_S
from serving.metrics.page import MetricsMemory, Timing
from serving.metrics.rates import NO_DURATIONS, Counts, Rates, grown, quantile, rates, total
from serving.metrics.reading import VersionNumbers, find_block

KEY = ("fraud", 3)


def durations(**counts: int) -> tuple[int, ...]:
    """A histogram with some buckets set, by the index of the bucket."""
    return tuple(counts.get(f"b{i}", 0) for i in range(len(NO_DURATIONS)))


def test_rates_are_what_came_between_two_readings():
    """Requests, refusals and failures are divided by the time; each code counts once."""
    before = {KEY: Counts({"200": 100, "400": 1}, durations(b5=101))}
    after = {KEY: Counts({"200": 190, "400": 6, "503": 5}, durations(b5=201))}

    found = rates(before, after, 10.0)[KEY]

    assert (found.requests_per_s, found.refused_per_s, found.failed_per_s) == (10.0, 0.5, 0.5)
    # All hundred lie between 2 and 3 ms, the first at 2.
    assert found.p50_s == pytest.approx(0.0025)
    assert found.p99_s == pytest.approx(0.00299)


def test_only_new_answers_make_the_percentiles():
    """Slow answers of an hour ago do not hide that all is fast now."""
    before = {KEY: Counts({"200": 1000}, durations(b16=1000))}
    after = {KEY: Counts({"200": 1010}, durations(b16=1000, b0=10))}

    assert rates(before, after, 1.0)[KEY].p99_s == pytest.approx(0.000099)


def test_version_without_new_answers_has_no_percentile():
    """Nothing was answered: there is no duration to tell, and the rate is zero."""
    same = {KEY: Counts({"200": 5}, durations(b2=5))}
    assert rates(same, same, 1.0) == {KEY: Rates()}


def test_counters_that_fell_began_again():
    """A version that was loaded again, or a server that was upgraded, counts from zero."""
    before = {KEY: Counts({"200": 500}, durations(b1=500))}
    after = {KEY: Counts({"200": 20}, durations(b2=20)), ("new", 1): Counts({"200": 4})}

    found = rates(before, after, 2.0)

    assert found[KEY].requests_per_s == 10.0
    assert found[KEY].p50_s is not None
    assert found["new", 1].requests_per_s == 2.0


def test_no_time_is_no_rate():
    """Two readings at one moment say nothing, and do not divide by zero."""
    assert rates({}, {KEY: Counts({"200": 4})}, 0.0) == {KEY: Rates()}


def test_histogram_that_is_behind_its_count_is_never_negative():
    """A reader that catches a writer between two cells shows nothing below zero."""
    assert grown(Counts({}, durations(b1=2)), Counts({}, durations(b1=1))).durations[1] == 0


@pytest.mark.parametrize(
    ("q", "counts", "value"),
    [(0.5, (0, 0, 0), None), (0.5, (10, 0, 0), 0.5), (1.0, (10, 0, 0), 1.0), (0.5, (1, 1, 0), 1.0),
     (0.75, (1, 1, 0), 1.5), (0.99, (0, 0, 3), 2.0), (0.0, (0, 4, 0), 1.0)],
)  # fmt: skip
def test_quantile_interpolates_as_promql_does(q, counts, value):
    """Linear within a bucket; above the largest bound it is the largest bound."""
    assert quantile(q, counts, (1.0, 2.0)) == value


def test_total_adds_versions_up():
    """The percentile of a model is that of all its answers, not a mean of percentiles."""
    parts = [Counts({"200": 1, "500": 2}, durations(b0=3)), Counts({"200": 4}, durations(b5=4))]
    assert total(parts) == Counts({"200": 5, "500": 2}, list(durations(b0=3, b5=4)))


def test_counts_are_read_from_the_shared_page():
    """What a worker counted is what the rates are made of."""
    with MetricsMemory.create(1) as memory:
        counters = memory.writer(0).version(*KEY)
        counters.request_started()
        counters.request_done(200, 1, Timing(2_500_000, 0))
        cells = find_block(memory.regions()[0], KEY)
        numbers = VersionNumbers()
        numbers.add(cells, has_gauges=True)

    counts = Counts.of(numbers)

    assert counts.by_code == {"200": 1}
    assert counts.durations[DURATION_BOUNDS_S.index(0.003)] == 1
    assert sum(counts.durations) == 1

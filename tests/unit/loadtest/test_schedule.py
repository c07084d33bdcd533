"""Starts are fixed beforehand: even, or as independent users come."""

from __future__ import annotations

import itertools
import statistics

import pytest

from loadtest.schedule import intended_starts_ns


def test_constant_arrivals_do_not_drift():
    """The last of many starts is where its number says, whatever the rate rounds to."""
    starts = list(intended_starts_ns(3.0, 1000.0))
    assert len(starts) == 3000
    assert starts[0] == 0
    assert starts[-1] == round(2999 * 1e9 / 3)


def test_poisson_arrivals_have_the_rate_and_its_spread():
    """Gaps average to one by the rate, and vary as much, which even ones do not."""
    starts = list(intended_starts_ns(1000.0, 20.0, "poisson", seed=1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(starts) == pytest.approx(20_000, rel=0.03)
    assert statistics.mean(gaps) == pytest.approx(1e6, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1e6, rel=0.05)


def test_the_same_seed_gives_the_same_starts():
    """Two runs can be compared start by start."""
    first, again, other = (
        list(intended_starts_ns(100.0, 2.0, "poisson", seed=seed)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_a_rate_or_time_of_nothing_is_refused(rate, seconds):
    """Nothing is sent for numbers that mean nothing."""
    with pytest.raises(ValueError, match="must be above 0"):
        intended_starts_ns(rate, seconds)

"""The turns of a split against their weights, over every window and any mix of workers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.split import Split
from registry.traffic import WEIGHT_SUM, Share

WINDOW = 1000
# The exact discrepancies of the golden rotation: of 1,000 points, and the most of any fewer.
OFF_AT_WINDOW, OFF_AT_MOST = 2.65, 3.69

positions = st.integers(0, 2**64 - 1)


@st.composite
def weights(draw: st.DrawFn) -> list[Share]:
    """Draw two to six weights that sum to 100."""
    cuts = draw(st.lists(st.integers(1, WEIGHT_SUM - 1), min_size=1, max_size=5, unique=True))
    ends = [0, *sorted(cuts), WEIGHT_SUM]
    return [Share(n, ends[n] - ends[n - 1]) for n in range(1, len(ends))]


def turns(shares: list[Share], position: int, count: int) -> list[int | None]:
    split = Split("m", shares, {share.version for share in shares}, position)
    return [split.next_version() for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(shares=weights(), position=positions)
def test_any_window_has_each_version_within_a_point_of_its_weight(
    shares: list[Share], position: int
) -> None:
    """Of any 1,000 turns that follow each other, each version gets its weight but for 2 or 3."""
    made = turns(shares, position, 3 * WINDOW)
    for share in shares:
        count = made[:WINDOW].count(share.version)
        wanted = share.weight * WINDOW / WEIGHT_SUM
        for start in range(2 * WINDOW):
            assert abs(count - wanted) <= OFF_AT_WINDOW
            count += (made[start + WINDOW] == share.version) - (made[start] == share.version)


@settings(max_examples=60, deadline=None)
@given(
    shares=weights(),
    workers=st.lists(st.tuples(positions, st.integers(0, 400)), min_size=1, max_size=8),
)
def test_workers_whose_requests_interleave_stay_close(
    shares: list[Share], workers: list[tuple[int, int]]
) -> None:
    """However requests fall over the workers, each adds at most 3.69 to the difference."""
    count: Counter[int | None] = Counter()
    for position, requests in workers:
        count.update(turns(shares, position, requests))
    for share in shares:
        wanted = share.weight * count.total() / WEIGHT_SUM
        assert abs(count[share.version] - wanted) <= OFF_AT_MOST * len(workers)


@settings(max_examples=40, deadline=None)
@given(shares=weights(), position=positions, stride=st.integers(2, 10))
def test_a_caller_with_a_rhythm_gets_its_share_too(
    shares: list[Share], position: int, stride: int
) -> None:
    """Of every second, third, ... tenth request, each version gets its weight but for 2 points."""
    made = turns(shares, position, stride * WINDOW)[::stride]
    for share in shares:
        wanted = share.weight * WINDOW / WEIGHT_SUM
        assert abs(made.count(share.version) - wanted) <= 20

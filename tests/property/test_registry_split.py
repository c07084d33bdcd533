"""Turns of a split against their weights in every window; keys against what a change must move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.rollout import Stamp, backed, moved
from registry.slots import first_slots, moved_slots
from registry.split import Split
from registry.traffic import WEIGHT_SUM, Share, Traffic

WINDOW = 1000
# The exact discrepancies of the golden rotation: of 1,000 points, and the most of any fewer.
OFF_AT_WINDOW, OFF_AT_MOST = 2.65, 3.69

positions = st.integers(0, 2**64 - 1)


@st.composite
def weights(draw: st.DrawFn) -> list[Share]:
    """Draw two to six weights that sum to 100."""
    return weights_of(draw, range(1, 7), 2)


def weights_of(draw: st.DrawFn, versions: Sequence[int], least: int) -> list[Share]:
    """Draw weights for at least so many of the versions."""
    cuts = st.lists(
        st.integers(1, WEIGHT_SUM - 1),
        min_size=least - 1, max_size=len(versions) - 1, unique=True,
    )  # fmt: skip
    ends = [0, *sorted(draw(cuts)), WEIGHT_SUM]
    return [Share(versions[n], ends[n + 1] - ends[n]) for n in range(len(ends) - 1)]


@st.composite
def histories(draw: st.DrawFn) -> list[Traffic]:
    """Draw what a route is set to, one after the other: one to six of eight versions each time."""

    def traffic() -> Traffic:
        versions = draw(st.permutations(range(1, 9)))[:6]
        return Traffic(tuple(weights_of(draw, sorted(versions), 1)))

    return [traffic() for _ in range(draw(st.integers(2, 8)))]


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


@settings(max_examples=150, deadline=None)
@given(history=histories())
def test_a_change_moves_just_the_slots_that_it_must(history: list[Traffic]) -> None:
    """Each version has its weight in slots, and what moved is what the weights grew by together."""
    slots = first_slots(history[0].split)
    for before, after in pairwise(history):
        former, slots = slots, moved_slots(slots, after.split)
        assert Counter(slots) == {share.version: share.weight for share in after.split}
        pairs = [(old, new) for old, new in zip(former, slots, strict=True) if old != new]
        grown = {s.version: s.weight - before.weight_of(s.version) for s in after.split}
        assert len(pairs) == sum(max(0, points) for points in grown.values())
        assert all(grown[new] > 0 >= grown.get(old, 0) for old, new in pairs)
        assert moved_slots(former, after.split) == slots


@settings(max_examples=150, deadline=None)
@given(history=histories(), failing=st.integers(1, 8))
def test_the_way_back_gives_every_slot_back(history: list[Traffic], failing: int) -> None:
    """A route that goes back to what it came from meets each key's former version, moving least."""
    route = None
    for seq, traffic in enumerate(history):
        before, route = route, moved(route, traffic, Stamp(seq, "t", "who"))
    assert before is not None
    route = backed(route, lambda version: version != failing)
    assert Counter(route.slots) == {share.version: share.weight for share in route.traffic.split}
    if route.previous is None:
        assert route.previous_slots == ()
        return
    back = moved(route, route.previous, Stamp(99, "t", "who"))
    if failing not in before.traffic.versions and before.traffic != route.traffic:
        assert back.slots == before.slots
    assert Counter(back.slots) == {share.version: share.weight for share in back.traffic.split}
    assert moved(back, route.traffic, Stamp(100, "t", "who")).slots == route.slots


@settings(max_examples=60, deadline=None)
@given(shares=weights(), keys=st.lists(st.binary(max_size=256), max_size=40))
def test_a_slot_is_as_wide_as_any_other(shares: list[Share], keys: list[bytes]) -> None:
    """Who has the upper slots has no more keys for it: reversed slots give reversed sides."""
    slots = first_slots(shares)
    numbered = Split("m", shares, (), 0, range(WEIGHT_SUM))
    split = Split("m", shares, (), 0, slots)
    assert [split.version_of(key) for key in keys] == [
        slots[numbered.version_of(key)] for key in keys
    ]

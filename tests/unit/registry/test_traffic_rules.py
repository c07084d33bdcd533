"""Shares: what is left of a split when versions drop out, and what a plan does to old versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import plan
from registry.lifecycle import State
from registry.model_settings import ModelSettings
from registry.model_state import Alias, ModelState
from registry.traffic import Share, Traffic
from registry.traffic_rules import MAX_SPLIT, parse_traffic, remaining


def traffic(*pairs: tuple[int, int], shadow: tuple[int, ...] = ()) -> Traffic:
    return Traffic(tuple(Share(*pair) for pair in pairs), shadow)


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ({3}, traffic((1, 67), (2, 33), shadow=(8, 9))),
        ({1}, traffic((2, 75), (3, 25), shadow=(8, 9))),
        ({8}, traffic((1, 60), (2, 30), (3, 10), shadow=(9,))),
        ({1, 2, 9}, traffic((3, 100), shadow=(8,))),
        ({1, 2, 3}, None),
        (set(), traffic((1, 60), (2, 30), (3, 10), shadow=(8, 9))),
    ],
)
def test_share_of_what_is_lost_goes_to_the_others_in_proportion(lost, left):
    """60:30 become 67:33, and nobody answers where only shadows are left."""
    before = traffic((1, 60), (2, 30), (3, 10), shadow=(8, 9))

    assert remaining(before, lambda v: v not in lost) == left


@st.composite
def splits(draw) -> Traffic:
    count = draw(st.integers(1, MAX_SPLIT))
    cuts = draw(st.lists(st.integers(1, 99), min_size=count - 1, max_size=count - 1, unique=True))
    edges = [0, *sorted(cuts), 100]
    return traffic(*((v + 1, edges[v + 1] - edges[v]) for v in range(count)))


@given(splits(), st.sets(st.integers(1, MAX_SPLIT)))
def test_what_is_left_is_traffic_that_could_be_asked_for(before, lost):
    """Weights stay whole, from 1, sum to 100, keep their order, and are what a body may say."""
    after = remaining(before, lambda v: v not in lost)

    staying = [share for share in before.split if share.version not in lost]
    if after is None:
        assert staying == []
        return
    body = after.to_json()
    assert parse_traffic(body["split"], body["shadow"], "body") == after
    assert [share.version for share in after.split] == [share.version for share in staying]
    total = sum(share.weight for share in staying)
    for was, now in zip(staying, after.split, strict=True):
        assert was.weight <= now.weight
        assert abs(now.weight - was.weight * 100 / total) < 1


def test_order_of_a_body_does_not_matter():
    """The same traffic said twice is no change."""
    one = [{"version": 4, "weight": 10}, {"version": 3, "weight": 90}]

    assert parse_traffic(one, [7, 5], "body") == parse_traffic(one[::-1], [5, 7], "body")


@pytest.mark.parametrize(("retain", "gone"), [(None, [2]), (0, [2, 4, 5]), (2, [2]), (1, [2, 4])])
def test_only_old_versions_that_nothing_names_expire(retain, gone):
    """The newest stay; what is published, aliased, LOADING or FAILED is never old."""
    states = dict.fromkeys(range(1, 8), State.UNLOADED) | {3: State.FAILED, 6: State.LOADING}
    if retain is None:
        states |= dict.fromkeys(range(10, 18), State.UNLOADED)
    settings = ModelSettings(retain=retain)
    model = ModelState(aliases={"prod": Alias(1, 1)}, settings=settings)

    assert plan.expired(model, "m", states, published=7 if retain is not None else 17) == gone

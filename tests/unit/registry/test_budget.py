"""The budget: sharing by digest, private memory by worker, admission at the limit."""

from __future__ import annotations

import pytest

from registry import budget
from registry.budget import Footprint
from registry.errors import OverBudget

A, B, C, D = ("m", 1), ("m", 2), ("m", 3), ("n", 1)


def test_weights_count_once_and_private_memory_once_a_worker():
    """Shared digests are not counted twice, whoever holds them."""
    held = {A: Footprint({"x": 100, "y": 10}, 5), B: Footprint({"x": 100, "z": 1}, 7)}

    assert budget.committed_bytes(held, workers=3) == 111 + 3 * 12
    assert budget.committed_bytes({}, workers=3) == 0


def test_what_some_workers_take_less_is_not_counted():
    """The largest figure stands for those only that nobody measured."""
    held = {("m", 1): Footprint({"a": 100}, 50, spared_bytes=70)}
    assert held["m", 1].private_bytes(workers=3) == 150 - 70
    assert budget.committed_bytes(held, workers=3) == 100 + 150 - 70
    assert Footprint({"a": 100}, None).private_bytes(workers=3) == 0


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_an_object_counts_as_far_as_the_version_reads_it_that_reads_most(order):
    """Two versions share what both read of an object, from its start; the rest is one's own."""
    items = {A: Footprint({"x": 100}, 0), B: Footprint({"x": 40, "y": 0}, 0)}

    assert budget.committed_bytes({key: items[key] for key in order}, workers=2) == 100
    more = budget.plan(1000, {B: items[B]}, A, items[A], workers=2)
    assert (more.needs_bytes, more.new_bytes, more.object_bytes) == (60, 60, 100)
    less = budget.plan(1000, {A: items[A]}, B, items[B], workers=2)
    assert (less.needs_bytes, less.new_bytes, less.object_bytes) == (0, 0, 40)


def test_shares_divide_the_weights():
    """Unique and shared bytes of a version make up its weights."""
    shares = budget.shares({A: {"x": 100, "y": 10}, B: {"x": 100}})

    assert (shares[A].unique_bytes, shares[A].shared_bytes) == (10, 100)
    assert (shares[B].unique_bytes, shares[B].shared_bytes) == (0, 100)
    assert (shares[A].others, shares[B].others) == ((B,), (A,))


@pytest.mark.parametrize(("limit", "fits"), [(161, True), (160, False)])
def test_admission_is_exact_at_the_limit(limit, fits):
    """A version fits if the sum is the budget to the byte, and one byte less refuses it."""
    held = {A: Footprint({"x": 100}, 10)}
    new = Footprint({"x": 100, "y": 1}, 20)  # 1 new byte of weights and 2 x 20 private

    if fits:
        assert budget.admit(limit, held, B, new, workers=2).needs_bytes == 41
        return
    with pytest.raises(OverBudget, match="needs 41 bytes") as caught:
        budget.admit(limit, held, B, new, workers=2)
    assert caught.value.plan == {
        "model": "m", "version": 2, "budget_bytes": 160,
        "needs_bytes": 41, "free_bytes": 40, "over_bytes": 0, "fits": False,
        "object_bytes": 101, "new_bytes": 1,
        "private_bytes_per_worker": 20, "workers": 2, "is_estimated": False, "reason": "",
        "would_evict": [], "fits_after_evicting": False,
    }  # fmt: skip


def test_what_was_never_measured_is_a_lower_bound_and_not_zero():
    """Private memory that nobody measured is null; weights and graph are needed at least."""
    held = {A: Footprint({"x": 100}, 10)}
    new = Footprint({"x": 100, "y": 1}, None)

    plan = budget.plan(200, held, B, new, workers=2).to_json()

    assert (plan["needs_bytes"], plan["new_bytes"], plan["is_estimated"]) == (1, 1, True)
    assert plan["private_bytes_per_worker"] is None
    assert "lower bound" in str(plan["reason"])
    with pytest.raises(OverBudget, match=r"needs at least 1 bytes \(1 of weights\), 0 of"):
        budget.admit(120, held, B, new, workers=2)


def test_plan_of_what_is_held_needs_nothing():
    """Loading again what is loaded takes no more memory."""
    held = {A: Footprint({"x": 100}, 10)}

    assert budget.plan(1000, held, A, held[A], workers=2).needs_bytes == 0


def test_budget_that_is_overdrawn_has_nothing_free():
    """Nothing more is admitted, and the advice frees what is over, too."""
    held = {A: Footprint({"x": 100}, 0), C: Footprint({"y": 60}, 0)}

    plan = budget.plan(50, held, B, Footprint({"n": 1}, 0), workers=1, evictable=[A, C])

    assert (plan.free_bytes, plan.over_bytes, plan.needs_bytes, plan.fits) == (0, 110, 1, False)
    assert [item.key for item in plan.would_evict] == [A, C]
    assert plan.fits_after_evicting
    nothing = budget.plan(50, held, B, Footprint({}, 0), workers=1)
    assert (nothing.needs_bytes, nothing.fits) == (0, False)
    with pytest.raises(OverBudget, match=r"takes 110 more than the budget of 50: unload m/1"):
        budget.admit(50, held, B, Footprint({"n": 1}, 0), workers=1, evictable=[A])


@pytest.mark.parametrize(
    ("held", "needs_bytes", "way_out"),
    [
        ({}, 51, "50 are free: no unload makes so much room, raise memory_budget"),
        ({A: Footprint({"x": 40}, 0)}, 11, "50 are free: no version that may be unloaded makes"),
    ],
)  # fmt: skip
def test_a_refusal_advises_no_unload_where_none_helps(held, needs_bytes, way_out):
    """Where all is free, or all that is loaded has to stay, an unload is not the way out."""
    with pytest.raises(OverBudget) as caught:
        budget.admit(50, held, B, Footprint({"n": needs_bytes}, 0), workers=1)
    assert way_out in str(caught.value)
    assert "raise memory_budget" in str(caught.value)
    assert ": unload" not in str(caught.value)


def test_what_is_held_is_no_new_load_however_far_the_budget_is_exceeded():
    """A plan of a loaded version needs nothing and fits."""
    held = {A: Footprint({"x": 100}, 0)}

    plan = budget.plan(50, held, A, held[A], workers=1)

    assert (plan.needs_bytes, plan.over_bytes, plan.fits) == (0, 0, True)


def test_an_excess_names_sizes_and_what_an_unload_gives():
    """What is over, and what would bring it back within the budget, the largest first."""
    held = {A: Footprint({"x": 100}, 5), B: Footprint({"x": 100, "z": 30}, 0)}

    found = budget.excess(120, held, 2, evictable=[B])

    assert (found.committed_bytes, found.over_bytes) == (140, 20)
    assert found.way_out == "unload m/2 (gives 30) or raise memory_budget"
    assert budget.excess(140, held, 2, [A, B]).to_json() == {
        "committed_bytes": 140, "budget_bytes": 140, "over_bytes": 0, "would_evict": [],
    }  # fmt: skip
    assert "(not enough by itself)" in budget.excess(10, held, 2, [A]).way_out


def test_what_to_unload_is_the_largest_first_and_no_more_than_needed():
    """What an unload gives is what nobody else shares, and the list ends where it suffices."""
    held = {
        A: Footprint({"x": 100, "y": 10}, 0),
        B: Footprint({"x": 100, "z": 30}, 0),
        C: Footprint({"c": 20}, 10),
    }
    new = Footprint({"n": 60}, 0)

    plan = budget.plan(200, held, D, new, 2, evictable=[A, B, C])

    # 20 are free of 200; C gives 20 and its private memory twice, B only what A does not share.
    assert plan.free_bytes == 20
    assert [(item.key, item.frees_bytes) for item in plan.would_evict] == [(C, 40)]
    assert (plan.fits, plan.fits_after_evicting) == (False, True)


def test_versions_that_share_all_are_counted_together():
    """The second of two that share a tensor gives it, once the first is gone."""
    held = {A: Footprint({"x": 100, "y": 1}, 0), B: Footprint({"x": 100}, 0)}

    plan = budget.plan(120, held, D, Footprint({"n": 100}, 0), 1, evictable=[A, B])

    assert [(item.key, item.frees_bytes) for item in plan.would_evict] == [(A, 1), (B, 100)]


def test_what_the_new_version_needs_itself_is_not_given_back():
    """An unload of a version that shares its weights with the new one frees nothing of them."""
    held = {A: Footprint({"x": 100}, 5)}

    with pytest.raises(
        OverBudget, match=r"unload m/1 \(gives 5\) \(not enough by itself\) or raise"
    ) as caught:
        budget.admit(110, held, D, Footprint({"x": 100, "n": 50}, 0), 1, evictable=[A])

    assert caught.value.plan["would_evict"] == [{"model": "m", "version": 1, "frees_bytes": 5}]


def test_a_plan_that_fits_evicts_nobody():
    """With room enough there is nothing to unload."""
    plan = budget.plan(500, {A: Footprint({"x": 100}, 0)}, D, Footprint({"n": 1}, 0), 1, [A])

    assert (plan.fits, plan.would_evict) == (True, ())


def test_default_budget_is_three_quarters_of_what_is_there():
    """The rest is for pages, workers and the machine."""
    assert budget.default_budget_bytes(1000) == 750

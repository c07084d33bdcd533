"""The budget: sharing by digest, private memory by worker, admission at the limit."""

from __future__ import annotations

import pytest

from registry import budget
from registry.budget import Footprint
from registry.errors import OverBudget
from registry.manifest import Manifest, TensorEntry

A, B = ("m", 1), ("m", 2)


def test_weights_count_once_and_private_memory_once_a_worker():
    """Shared digests are not counted twice, whoever holds them."""
    held = {A: Footprint({"x": 100, "y": 10}, 5), B: Footprint({"x": 100, "z": 1}, 7)}

    assert budget.committed_bytes(held, workers=3) == 111 + 3 * 12
    assert budget.committed_bytes({}, workers=3) == 0


def test_shares_divide_the_weights():
    """Unique and shared bytes of a version make up its weights."""
    held = {A: Footprint({"x": 100, "y": 10}, 5), B: Footprint({"x": 100}, 7)}

    shares = budget.shares(held)

    assert (shares[A].unique_bytes, shares[A].shared_bytes) == (10, 100)
    assert (shares[B].unique_bytes, shares[B].shared_bytes) == (0, 100)


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
        "needs_bytes": 41, "free_bytes": 40, "fits": False, "weight_bytes": 101, "new_bytes": 1,
        "private_bytes_per_worker": 20, "workers": 2, "is_estimated": False, "reason": "",
        "would_evict": [],
    }  # fmt: skip


def test_what_was_never_measured_is_a_lower_bound_and_not_zero():
    """Private memory that nobody measured is null; weights and graph are needed at least."""
    held = {A: Footprint({"x": 100}, 10)}
    new = Footprint({"x": 100, "y": 1}, None)

    plan = budget.plan(200, held, B, new, workers=2, graph_bytes=7).to_json()

    assert (plan["needs_bytes"], plan["new_bytes"], plan["is_estimated"]) == (8, 1, True)
    assert plan["private_bytes_per_worker"] is None
    assert "lower bound" in str(plan["reason"])
    with pytest.raises(OverBudget, match=r"needs at least 1 bytes \(1 of weights\), 0 of"):
        budget.admit(120, held, B, new, workers=2)


def test_plan_of_what_is_held_needs_nothing():
    """Loading again what is loaded takes no more memory."""
    held = {A: Footprint({"x": 100}, 10)}

    assert budget.plan(1000, held, A, held[A], workers=2).needs_bytes == 0


def test_budget_that_is_overdrawn_has_nothing_free():
    """A smaller budget after a restart never shows negative room."""
    held = {A: Footprint({"x": 100}, 0)}

    plan = budget.plan(50, held, B, Footprint({}, 0), workers=1)

    assert (plan.free_bytes, plan.fits) == (0, True)


def test_footprint_counts_a_tensor_that_stands_twice_once():
    """A manifest may name the same object several times."""
    digest = "sha256:" + "0" * 64
    entries = (TensorEntry(digest, 8), TensorEntry(digest, 8))
    manifest = Manifest("m", digest, entries, {}, {"name": "onnx"})

    assert budget.footprint(manifest, 3).weight_bytes == 8


def test_default_budget_is_three_quarters_of_what_is_there():
    """The rest is for pages, workers and the machine."""
    assert budget.default_budget_bytes(1000) == 750

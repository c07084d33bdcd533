"""Where and how large runs are, from what runs took. All times are made up."""

from __future__ import annotations

import pytest

from models.servable import Inspection
from models.signature import Signature, TensorSpec
from registry.manifest import Manifest
from serving.data.run_policy import (
    FLUSH_NS,
    THREAD_BATCH_NS,
    MergeGain,
    RunCost,
    RunPolicy,
    has_one_shape,
    may_inline,
)

KEY = (("x", "<f4", (4,)),)
US = 1000


def policy(run_us: float, **more: float) -> RunPolicy:
    """Return the policy of a version whose inspection took ``run_us`` for one row."""
    options = {"may_inline": True, "has_one_shape": True} | more
    return RunPolicy(max_batch_rows=256, run_s=run_us / 1e6, **options)


def feed(target: RunPolicy, fixed_us: float, each_us: float, turns: int = 40) -> None:
    """Let runs of one row and of eight requests take what a straight line says."""
    for _ in range(turns):
        target.measured(KEY, 1, 1, int((fixed_us + each_us) * US))
        target.measured(KEY, 8, 8, int((fixed_us + 8 * each_us) * US))


def test_a_cheap_version_runs_inline_and_a_dear_one_in_a_thread() -> None:
    """The inspection's measurement counts with those of the worker."""
    cheap, dear = policy(50), policy(5000)
    # The first run of all is in a thread: what the inspection saw was another process.
    assert not cheap.cut(KEY, 1, 1).is_inline
    cheap.measured(KEY, 1, 1, 60 * US)
    dear.measured(KEY, 1, 1, 60 * US)
    assert cheap.cut(KEY, 1, 1).is_inline
    assert not dear.cut(KEY, 1, 1).is_inline


@pytest.mark.parametrize(
    ("inline_ms", "run_us", "is_inline"),
    [(0, 1, False), (0.1, 150, False), (0.1, 50, True), (5, 4000, True), (5, 6000, False)],
)
def test_the_setting_says_what_may_run_on_the_loop(inline_ms, run_us, is_inline) -> None:
    """0 sends every run to a thread; more than a pass of the loop lets the pass take longer."""
    target = policy(run_us, inline_ns=inline_ms * 1e6)
    target.measured(KEY, 1, 1, run_us * US)
    assert target.cut(KEY, 1, 1).is_inline == is_inline


@pytest.mark.parametrize("more", [{"may_inline": False}, {"has_one_shape": False}])
def test_what_may_not_end_or_was_not_measured_runs_in_a_thread(more: dict[str, bool]) -> None:
    """On the loop nothing could end a run; an unknown shape may take any time."""
    target = policy(50, **more)
    if "may_inline" in more:
        target.measured(KEY, 1, 1, 50 * US)
    assert not target.cut(KEY, 1, 1).is_inline


def test_a_version_that_was_not_measured_at_all_runs_in_a_thread() -> None:
    """No inspection time is no promise."""
    assert not policy(0).cut(KEY, 1, 1).is_inline


def test_an_inline_run_never_takes_more_than_a_pass_of_the_loop() -> None:
    """The rows are capped by time, and a request that is larger by itself goes to a thread."""
    target = policy(50)
    feed(target, 40, 10)
    cut = target.cut(KEY, 1, 500)
    assert cut.is_inline
    assert cut.max_rows == pytest.approx((FLUSH_NS / US - 40) / 10, rel=0.02)
    assert target.cut(KEY, 150, 1).is_inline
    assert not target.cut(KEY, 250, 1).is_inline


def test_a_batch_in_a_thread_is_capped_by_time_too() -> None:
    """Who comes next, of this version or another, waits no longer than this."""
    target = policy(10_000)
    feed(target, 5_000, 5_000)
    cut = target.cut(KEY, 1, 100)
    assert not cut.is_inline
    assert cut.max_rows == pytest.approx((THREAD_BATCH_NS / US - 5_000) / 5_000, abs=1)


def test_a_version_leaves_the_loop_later_than_it_comes() -> None:
    """Between one and two milliseconds it stays where it is."""
    inline, threaded = policy(900), policy(3000)
    for target, run_us in ((inline, 900), (threaded, 3000)):
        target.measured(KEY, 1, 1, run_us * US)
    assert inline.cut(KEY, 1, 1).is_inline
    for target in (inline, threaded):
        for _ in range(300):
            target.measured(KEY, 1, 1, 1500 * US)
    assert inline.cut(KEY, 1, 1).is_inline
    assert not threaded.cut(KEY, 1, 1).is_inline
    for _ in range(300):
        inline.measured(KEY, 1, 1, 2500 * US)
    assert not inline.cut(KEY, 1, 1).is_inline


def test_one_interrupted_run_changes_nothing() -> None:
    """A run that the system stopped for 50 ms does not send the version to threads."""
    target = policy(50)
    feed(target, 40, 10)
    target.measured(KEY, 1, 1, 50_000 * US)
    assert target.cut(KEY, 1, 1).is_inline


def test_a_version_that_turned_slow_leaves_the_loop_in_a_few_runs() -> None:
    """What lasts is believed soon."""
    target = policy(50)
    feed(target, 40, 10)
    runs = 0
    while target.cut(KEY, 1, 1).is_inline:
        target.measured(KEY, 1, 1, 20_000 * US)
        runs += 1
    assert runs < 20


def test_cost_of_equal_sizes_is_all_per_row() -> None:
    """With one size seen, more rows are taken to cost as much more: never a promise too good."""
    cost = RunCost()
    for _ in range(5):
        cost.add(1, 100.0)
    assert cost.expected_ns(4) == pytest.approx(400)
    assert cost.rows_within(1000) == 10


def test_shapes_are_told_apart_and_bounded() -> None:
    """Each width has a measurement of its own; the oldest is forgotten."""
    target = policy(0, has_one_shape=False)
    keys = [(("x", "<f4", (width,)),) for width in range(100)]
    for key in keys:
        target.measured(key, 1, 1, 50 * US)
    assert target.cut(keys[-1], 1, 1).is_inline
    assert not target.cut(keys[0], 1, 1).is_inline


def rate(gain: MergeGain, alone_us: float, merged_us: float, runs: int) -> tuple[float, bool]:
    """Let a full queue go through ``runs`` runs; return rows a microsecond and what was found."""
    rows = took_us = 0.0
    for _ in range(runs):
        members = gain.members(32)
        run_us = alone_us if members == 1 else merged_us * members
        gain.add(members, members, run_us * US)
        rows += members
        took_us += run_us
    return rows / took_us, gain.is_merging


@pytest.mark.parametrize("merged", [0.95, 1.0, 1.07, 1.5, 3.0])
def test_merging_that_gains_nothing_is_given_up_and_costs_nothing(merged: float) -> None:
    """An encoder on one core: never below 0.98 of what it does with batching off."""
    gain = MergeGain()
    rate(gain, 100, 100 * merged, 200)
    found, is_merging = rate(gain, 100, 100 * merged, 5000)
    assert not is_merging
    assert found / (1 / 100) >= 0.98


def test_merging_that_gains_is_kept() -> None:
    """Runs alone are tried so rarely that it does not show."""
    found, is_merging = rate(MergeGain(), 50, 15, 5000)
    assert is_merging
    assert found / (1 / 15) >= 0.98


def test_merging_comes_back_when_it_gains_again() -> None:
    """The trials notice that the load has changed."""
    gain = MergeGain()
    assert not rate(gain, 100, 100, 500)[1]
    assert rate(gain, 100, 20, 20_000)[1]


@pytest.mark.parametrize(
    ("spec", "is_alike"),
    [
        (TensorSpec("x", "FP32", (-1, 4)), True),
        (TensorSpec("x", "FP32", (-1,)), True),
        (TensorSpec("x", "FP32", (-1, -1)), False),
        (TensorSpec("x", "BYTES", (-1, 2)), False),
    ],
)
def test_only_fixed_shapes_are_alike(spec: TensorSpec, is_alike: bool) -> None:
    """One measurement speaks for all requests where only their rows differ."""
    assert has_one_shape(Signature((spec,), (TensorSpec("y", "FP32", (-1,)),))) is is_alike


@pytest.mark.parametrize(
    ("runtime", "has_control_flow", "is_batchable", "expected"),
    [
        ("onnx", False, True, True),
        ("onnx", True, True, False),
        ("onnx", False, False, False),
        ("text", False, True, False),
    ],
)
def test_what_may_take_long_never_runs_on_the_loop(
    runtime: str, has_control_flow: bool, is_batchable: bool, expected: bool
):
    """A text says nothing of its length by its shape, and a loop may go on for ever."""
    signature = Signature((TensorSpec("text", "BYTES", (-1,)),), ())
    inspection = Inspection(signature, is_batchable, "", has_control_flow, 1e-4, 0.1, 0)
    manifest = Manifest("m", "sha256:" + "0" * 64, (), {}, {"name": runtime})
    assert may_inline(inspection, manifest) is expected

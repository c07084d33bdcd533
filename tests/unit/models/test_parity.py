"""Measuring how far a graph is from its native model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from models.errors import ConversionRefused
from models.parity import compare, edge_matrix, edge_values

TWO = {"x": np.arange(2, dtype=np.float32)[:, None]}
THREE = {"x": np.arange(3, dtype=np.float32)[:, None]}


def fixed(**outputs):
    arrays = {name: np.asarray(values) for name, values in outputs.items()}
    return lambda inputs: arrays


def test_differences_are_relative_to_the_native_number():
    """The difference is divided by max(1, |native|), and the worst place is named."""
    native = fixed(y=[0.5, 1000.0, 1.0])
    parity = compare(fixed(y=[0.5, 1000.01, 1.000002]), native, THREE, 1e-5)
    assert parity.max_difference == pytest.approx(1e-5)
    assert "row 1" in parity.worst


def test_what_is_not_finite_must_be_the_same():
    """Equal NaN and infinity are no difference; anything else beside them is an infinite one."""
    odd = [np.nan, np.inf, -np.inf]
    assert compare(fixed(y=odd), fixed(y=odd), THREE).max_difference == 0.0
    assert compare(fixed(y=[np.nan, 1.0]), fixed(y=[1.0, 1.0]), TWO).max_difference == np.inf
    assert compare(fixed(y=[1.0, 1.0]), fixed(y=[np.inf, 1.0]), TWO).max_difference == np.inf


def test_labels_may_differ_only_where_the_native_model_is_in_two_minds():
    """A label that differs on a tie is counted apart; any other one refuses the conversion."""
    probabilities = [[0.5, 0.5], [0.1, 0.9]]
    native = fixed(label=[0, 1], p=probabilities)
    tie = compare(fixed(label=[1, 1], p=probabilities), native, TWO)
    assert (tie.label_disagreements, tie.ties, tie.is_within) == (0, 1, True)
    wrong = compare(fixed(label=[0, 0], p=probabilities), native, TWO)
    assert (wrong.label_disagreements, wrong.is_within) == (1, False)
    texts = compare(fixed(label=["a", "b"], p=probabilities), fixed(label=["a", "c"]), TWO)
    assert texts.label_disagreements == 1


def test_a_conversion_over_the_tolerance_is_refused_with_the_figures():
    """The message has the difference, its place, and the tolerance."""
    parity = compare(fixed(y=[0.0, 0.1]), fixed(y=[0.0, 0.0]), TWO, 1e-5)
    with pytest.raises(ConversionRefused, match=r"0\.1 .*row 1.* tolerance is 1e-05"):
        parity.require()


def test_another_shape_is_refused():
    """An output of another shape is no match, whatever its numbers."""
    with pytest.raises(ConversionRefused, match=r"shape \(2,\)"):
        compare(fixed(y=[0.0, 0.0]), fixed(y=[[0.0], [0.0]]), TWO)


def test_the_record_is_json_with_golden_rows():
    """The record can be stored as it is, with null for what is not finite."""
    rows = {"x": np.array([[1.0], [2.0]]), "t": np.array([["a"], ["b"]], dtype=object)}
    parity = compare(fixed(y=[1.0, np.inf]), fixed(y=[1.0, np.inf]), rows)
    record = json.loads(json.dumps(parity.to_json(), allow_nan=False))
    assert record["rows"] == 2
    assert record["golden"][1] == {"inputs": {"x": [2.0], "t": ["b"]}, "outputs": {"y": None}}


def test_golden_rows_are_those_that_json_can_tell():
    """A missing number is null, as an infinite one is: such rows are kept where all are so."""
    rows = {"x": np.array([[1.0], [np.nan]])}
    golden = compare(fixed(y=[1.0, 2.0]), fixed(y=[1.0, 2.0]), rows).golden
    assert [row["inputs"] for row in golden] == [{"x": [1.0]}]
    rows = {"x": np.array([[np.inf], [np.nan]])}
    golden = compare(fixed(y=[1.0, 2.0]), fixed(y=[1.0, 2.0]), rows).golden
    assert [row["inputs"] for row in golden] == [{"x": [None]}, {"x": [None]}]


def test_edges_hold_each_threshold_with_its_neighbours():
    """A threshold comes as float32 with the float32 below and the one above."""
    values = edge_values(np.array([0.1]), is_nan_allowed=False, is_infinity_allowed=False)
    t = np.float32(0.1)
    assert {t, np.nextafter(t, np.float32(0)), np.nextafter(t, np.float32(1))} <= set(values)
    assert np.isfinite(values).all()
    full = edge_values(np.array([0.1]), is_nan_allowed=True, is_infinity_allowed=True)
    assert np.isnan(full).any()
    assert np.isinf(full).sum() == 2


def test_the_matrix_holds_every_edge_of_every_feature():
    """No edge value is left out, with ordinary rows to start from or without."""
    rng = np.random.default_rng(1)
    edges = [np.arange(n, dtype=np.float32) for n in (3, 1500)]
    for base in (None, np.full((4, 2), -1, dtype=np.float32)):
        matrix = edge_matrix(edges, base, rng)
        for feature, values in enumerate(edges):
            assert set(values) <= set(matrix[:, feature])

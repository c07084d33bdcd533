"""Golden rows: what counts as the same answer as when the version was pushed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.errors import InputRefused
from models.golden import drift
from models.signature import Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("age", "FP64", (-1, 1)), TensorSpec("city", "BYTES", (-1, 1))),
    (
        TensorSpec("label", "BYTES", (-1,)),
        TensorSpec("probabilities", "FP32", (-1, 2)),
    ),
)


def found(label: str, probabilities: list[float], **record: Any) -> str:
    """Return the drift where a version answers this to the row, which was ``no, [0.75, 0.25]``."""

    def run(inputs: Any) -> list[np.ndarray]:
        assert inputs["age"].tolist() == [[51.5]]
        assert inputs["city"].tolist() == [["Wien"]]
        return [np.array([label], object), np.array([probabilities], np.float32)]

    row = {
        "inputs": {"age": [51.5], "city": ["Wien"]},
        "outputs": {"label": "no", "probabilities": [0.75, 0.25]},
    }
    return drift(run, SIGNATURE, {"golden": [row], "tolerance": 1e-3} | record)


def test_equal_answers_have_not_drifted() -> None:
    """Equal within twice the tolerance of the push is equal."""
    assert found("no", [0.75, 0.25]) == ""
    assert found("no", [0.7515, 0.2485]) == ""


def test_other_numbers_and_labels_have() -> None:
    """The message names the row, the output, what it is and what it was."""
    assert found("no", [0.7, 0.3]) == (
        "its answers have drifted since it was pushed: golden row 1: probabilities is "
        "0.699999988, was 0.75"
    )
    assert found("yes", [0.75, 0.25]).endswith("golden row 1: label is 'yes', was 'no'")


def test_a_label_between_two_equal_classes_may_turn() -> None:
    """Where the native library was in two minds, either label is right."""
    row = {
        "inputs": {"age": [51.5], "city": ["Wien"]},
        "outputs": {"label": "no", "probabilities": [0.5, 0.5]},
    }
    assert found("yes", [0.5, 0.5], golden=[row]) == ""


def test_what_is_not_finite_is_null() -> None:
    """null is any number that JSON cannot say."""
    row = {
        "inputs": {"age": [51.5], "city": ["Wien"]},
        "outputs": {"label": "no", "probabilities": [None, 0.25]},
    }
    assert found("no", [np.inf, 0.25], golden=[row]) == ""
    assert "was nan" in found("no", [0.5, 0.25], golden=[row])


def test_a_refused_row_has_drifted() -> None:
    """A row that was answered once must be answered."""

    def run(inputs: Any) -> list[np.ndarray]:
        raise InputRefused("no such city")

    row = {"inputs": {"age": [1.0], "city": ["Linz"]}, "outputs": {"label": "no"}}
    assert drift(run, SIGNATURE, {"golden": [row]}).endswith("golden row 1: no such city")


@pytest.mark.parametrize(
    "record",
    [
        None, {}, {"golden": 7}, {"golden": [None]}, {"golden": [{}]},
        {"golden": [{"inputs": {"age": [None], "city": ["Wien"]}, "outputs": {}}]},
        {"golden": [{"inputs": {"age": ["x"], "city": ["Wien"]}, "outputs": {}}]},
        {"golden": [{"inputs": {"age": [[1]], "city": ["Wien"]}, "outputs": {}}]},
        {"golden": [{"inputs": {"age": [1], "city": [2]}, "outputs": {}}]},
        {"golden": [{"inputs": {"age": [1], "city": ["Wien"]}, "outputs": 5}]},
    ],
)  # fmt: skip
def test_what_is_no_golden_row_is_passed_over(record: Any) -> None:
    """A manifest may say anything; only rows of this signature are asked."""

    def run(inputs: Any) -> list[np.ndarray]:
        raise AssertionError("nothing to ask")

    assert drift(run, SIGNATURE, record) == ""


def test_a_label_of_several_may_turn_at_a_half() -> None:
    """There each label has a probability of its own; the two highest say nothing of them."""
    signature = Signature(
        (TensorSpec("age", "FP64", (-1, 1)),),
        (TensorSpec("label", "INT64", (-1, 2)), TensorSpec("probabilities", "FP32", (-1, 2))),
    )

    def drifted(label: list[int], probabilities: list[float]) -> str:
        def run(inputs: Any) -> list[np.ndarray]:
            return [np.array([label]), np.array([probabilities], np.float32)]

        outputs = {"label": [1, 0], "probabilities": probabilities}
        row = {"inputs": {"age": [1.0]}, "outputs": outputs}
        return drift(run, signature, {"golden": [row]})

    assert drifted([1, 0], [0.75, 0.25]) == ""
    assert drifted([0, 0], [0.5, 0.25]) == ""
    assert drifted([0, 0], [0.75, 0.75]).endswith("label is [0, 0], was [1, 0]")

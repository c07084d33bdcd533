"""What counts as the same answer of two models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.difference import compare_outputs

INF = float("inf")


def f4(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("got", "expected", "is_same", "difference"),
    [
        (f4(0.5, 2.0), f4(0.5, 2.0), True, 0.0),
        (np.array([1e-9]), np.array([2e-9]), True, 1e-9),
        (np.array([1.0 + 5e-6]), np.array([1.0]), True, 5e-6),
        (np.array([1.0 + 2e-5]), np.array([1.0]), False, 2e-5),
        (np.array([1e6 + 1.0]), np.array([1e6]), True, 1e-6),
        (np.array([0.25]), f4(0.25), True, 0.0),
        (f4(np.nan, INF), f4(np.nan, INF), True, 0.0),
        (f4(np.nan), f4(1.0), False, INF),
        (f4(INF), f4(-INF), False, INF),
        (f4(1.0, 2.0), f4(1.0), False, INF),
        (f4(), f4(), True, 0.0),
        (np.float32(1.0) + f4()[:0].sum(), np.float32(1.0), True, 0.0),
        (np.array([1, 2]), np.array([1, 2]), True, 0.0),
        (np.array([1, 2]), np.array([1, 3]), False, 0.0),
        (np.array([2**62]), np.array([2**62 + 1]), False, 0.0),
        (np.array([1.0]), np.array([1]), True, 0.0),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), True, 0.0),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), False, 0.0),
        (np.array(["1"], object), np.array([1]), False, 0.0),
        (np.array([True]), np.array([False]), False, 0.0),
    ],
)
def test_numbers_may_differ_a_little_and_labels_not_at_all(
    got: Any, expected: Any, is_same: bool, difference: float
) -> None:
    """Relative where the number is above 1, absolute below; all that is no such number is exact."""
    found = compare_outputs({"y": np.asarray(got)}, {"y": np.asarray(expected)})
    assert found == (is_same, pytest.approx(difference, rel=1e-6))


def test_all_outputs_count_and_more_are_no_matter() -> None:
    """The largest difference of all is told, one wrong label makes it different."""
    wanted = {"p": f4(0.5), "label": np.array([1])}
    assert compare_outputs({"p": f4(0.75), "label": np.array([1])}, wanted) == (False, 0.25)
    assert compare_outputs({"p": f4(0.5), "label": np.array([2])}, wanted) == (False, 0.0)
    assert compare_outputs(wanted | {"more": f4(1.0)}, wanted) == (True, 0.0)
    assert compare_outputs({"p": f4(0.5)}, wanted) == (False, INF)

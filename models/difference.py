"""How far one model's numbers are from another's; what is far for 1e-9 may be near for 1e9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.servable import Array

DEFAULT_TOLERANCE: Final = 1e-5
K = TypeVar("K")


def relative_difference(
    got: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``|got - expected| / max(1, |expected|)`` of each element of two equal shapes.

    Equal values, NaN beside NaN included, differ by 0; what cannot be measured, by infinity.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.abs(got - expected) / np.maximum(1.0, np.abs(expected))
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    # A native double past the range of float32 is infinite here, and that is all it can be.
    scaled[np.isnan(scaled)] = np.inf
    scaled[same] = 0.0
    return scaled


def compare_outputs(
    got: Mapping[K, Array], expected: Mapping[K, Array], tolerance: float = DEFAULT_TOLERANCE
) -> tuple[bool, float]:
    """Return whether the outputs of ``expected`` are the same in ``got``, and how far off they are.

    Numbers with a fraction may differ by ``tolerance``, all else (labels, counts, text) must be
    equal. The difference is the largest of any such number; infinity for an output that is missing
    or of another shape.
    """
    is_same, largest = True, 0.0
    for key, wanted in expected.items():
        have = got.get(key)
        if have is None or have.shape != wanted.shape:
            return False, float("inf")
        if have.dtype.kind == wanted.dtype.kind == "f":
            difference = relative_difference(
                np.atleast_1d(have).astype(np.float64), np.atleast_1d(wanted).astype(np.float64)
            )
            largest = max(largest, float(difference.max(initial=0.0)))
        elif not np.array_equal(have, wanted):
            is_same = False
    return is_same and largest <= tolerance, largest

"""What the inputs of runs lack, or hold that training never saw: the first signs of drifting data.

Looked at once a run, over the rows of all requests in it, by as few calls as there are inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from models.servable import Array
from models.signature import Signature, TensorSpec

_FLOATS: Final = ("FP16", "FP32", "FP64")


class InputLook:
    """Counts missing values and unseen categories of one signature's inputs. Any thread may."""

    def __init__(self, signature: Signature) -> None:
        self._floats = [spec.name for spec in signature.inputs if spec.datatype in _FLOATS]
        self._listed = []
        for spec in signature.inputs:
            known = _known(spec)
            if known is not None or (spec.datatype == "BYTES" and spec.missing is not None):
                self._listed.append((spec.name, known, spec.missing))

    def count(self, inputs: Mapping[str, Array], *, are_whole: bool = False) -> tuple[int, int]:
        """Return how many values are missing, and how many are of no category that is known.

        Missing: NaN, and in text the word that the signature has for it, which is no category.
        ``are_whole``: no number is NaN, as a caller knows.
        """
        missing = unseen = 0
        if not are_whole:
            for name in self._floats:
                if (array := inputs.get(name)) is not None:
                    missing += _nans(array)
        for name, known, word in self._listed:
            if (listed := inputs.get(name)) is None:
                continue
            values = listed.ravel().tolist()
            lacking = values.count(word) if word is not None else 0
            missing += lacking
            if known is not None:
                unseen += len(values) - lacking - sum(map(known.__contains__, values))
        return missing, unseen


def _nans(array: Array) -> int:
    if array.size == 1:
        return int(array.item() != array.item())
    # Squares are never negative, so their sum is NaN only where a value is: one pass, no copy.
    if array.dtype == np.float16 or math.isnan(np.vdot(array, array)):
        return int(np.count_nonzero(np.isnan(array)))
    return 0


def _known(spec: TensorSpec) -> frozenset[str | int] | None:
    """Return what training knew of one column; None where there is no list, or no single column."""
    if not spec.categories or (len(spec.shape) > 1 and spec.shape[1:] != (1,)):
        return None
    if spec.datatype == "BYTES":
        return frozenset(spec.categories) - {spec.missing or ""}
    if "INT" in spec.datatype:
        try:
            return frozenset(map(int, spec.categories))
        except ValueError:
            return None
    return None

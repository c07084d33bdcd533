"""The classification extension: the best classes of each row as ``value:index[:label]`` texts."""

from __future__ import annotations

import numpy as np
import orjson

from models.servable import Array
from models.signature import TensorSpec


def best_classes(array: Array, spec: TensorSpec, count: int) -> Array:
    """Return ``(rows, k)`` texts of the k highest values, the highest first; equal ones by index.

    NaN is last. ``k`` is ``count``, or all classes where there are fewer. An output without a row
    dimension gives ``(k,)``. Values carry as many digits as their datatype needs to be exact.
    """
    has_rows = array.ndim > 1 or (array.ndim == 1 and spec.shape[:1] == (-1,))
    rows = array.shape[0] if has_rows else 1
    classes = array.size // rows if rows else int(np.prod(array.shape[1:]))
    table = array.reshape(rows, classes)
    k = min(count, classes)
    result = np.empty((rows, k), dtype=object)
    for row in range(rows):
        values = table[row]
        # Sorting the reversed row and reversing the order keeps equal values in index order.
        keys = np.where(np.isnan(values), -np.inf, values) if values.dtype.kind == "f" else values
        order = (classes - 1 - np.argsort(keys[::-1], kind="stable")[::-1])[:k]
        for place, index in enumerate(order.tolist()):
            result[row, place] = _entry(values[index], index, spec.labels)
    return result if has_rows else result[0]


def _entry(value: np.generic, index: int, labels: tuple[str | int, ...] | None) -> str:
    label = f":{labels[index]}" if labels is not None and index < len(labels) else ""
    return f"{_digits(value)}:{index}{label}"


def _digits(value: np.generic) -> str:
    if value.dtype.kind == "f" and not np.isfinite(value):
        return str(value)
    # orjson writes the fewest digits that read back to the same value of this datatype.
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()

"""The golden rows of a version, asked again where it is to serve.

A conversion keeps a few rows with what the native library answered. Another runtime or another
processor may answer otherwise, and then the version is not what was pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.difference import DEFAULT_TOLERANCE, relative_difference
from models.errors import ModelsError
from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.ident import shown

Run = Callable[[Mapping[str, Array]], Sequence[Array]]
# A row at the very edge of the tolerance may pass it by a last bit elsewhere.
_SLACK: Final = 2.0
_MAX_ROWS: Final = 100


def drift(run: Run, signature: Signature, parity: Mapping[str, Any] | None) -> str:
    """Return the first golden row that is answered otherwise, in words; "" where none is.

    ``parity``: the manifest's record, which anybody may have written: what is not a row of this
    signature is passed over, and so are rows with missing values, which JSON cannot tell apart
    from infinite ones.
    """
    record = parity or {}
    tolerance = record.get("tolerance")
    if type(tolerance) is not float or not 0 < tolerance < 1:
        tolerance = DEFAULT_TOLERANCE
    golden = record.get("golden")
    if not isinstance(golden, list):
        return ""
    for number, row in enumerate(golden[:_MAX_ROWS], start=1):
        found = _row(run, signature, row, _SLACK * tolerance)
        if found:
            return f"its answers have drifted since it was pushed: golden row {number}: {found}"
    return ""


def _row(run: Run, signature: Signature, row: object, tolerance: float) -> str:
    try:
        inputs = {spec.name: _input(row["inputs"][spec.name], spec) for spec in signature.inputs}  # type: ignore[index]
        wanted = dict(row["outputs"])  # type: ignore[index]
    except (ValueError, KeyError, TypeError, OverflowError):
        return ""
    try:
        answer = run(inputs)
    except ModelsError as error:
        return str(error)
    arrays = dict(zip((spec.name for spec in signature.outputs), answer, strict=True))
    is_several = isinstance(wanted.get("label"), list)
    near = _is_near_half if is_several else _is_near
    is_tie = any(near(wanted[name], name, tolerance) for name in wanted)
    for name, value in wanted.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.dtype.kind != "f":
            if not is_tie and _plain(array) != value:
                return f"{name} is {shown(_plain(array))}, was {shown(value)}"
        elif text := _difference(array, value, tolerance):
            return f"{name} {text}"
    return ""


def _input(value: object, spec: TensorSpec) -> Array:
    array = np.array([value], dtype=object)
    if any(item is None for item in array.ravel()):
        raise ValueError("a missing value")
    if spec.datatype == "BYTES":
        if not all(isinstance(item, str) for item in array.ravel()):
            raise TypeError("not text")
    else:
        array = array.astype(numpy_dtype(spec.datatype))
    if array.ndim != len(spec.shape):
        raise ValueError("another shape")
    return array


def _difference(array: Array, value: object, tolerance: float) -> str:
    got = array[0].astype(np.float64) if array.ndim else array.astype(np.float64)
    expected = _numbers(value)
    if expected is None or expected.shape != got.shape:
        return ""
    # null stood for what is not finite, whichever it was.
    got = np.where(np.isfinite(got), got, np.nan)
    worst = relative_difference(np.atleast_1d(got), np.atleast_1d(expected))
    at = int(worst.argmax()) if worst.size else 0
    if not worst.size or worst.ravel()[at] <= tolerance:
        return ""
    return f"is {np.ravel(got)[at]:.9g}, was {np.ravel(expected)[at]:.9g}"


def _numbers(value: object) -> NDArray[np.float64] | None:
    try:
        return np.array(value, dtype=np.float64)  # null becomes NaN
    except (ValueError, TypeError):
        return None


def _is_near(value: object, name: str, tolerance: float) -> bool:
    """Return whether an output says that two labels are equally good."""
    numbers = _numbers(value)
    if numbers is None or not np.isfinite(numbers).all():
        return False
    if numbers.ndim == 1 and numbers.size > 1:
        top = np.sort(numbers)[-2:]
        return bool(top[1] - top[0] <= tolerance)
    return name == "scores" and numbers.ndim == 0 and bool(abs(numbers) <= tolerance)


def _is_near_half(value: object, name: str, tolerance: float) -> bool:
    """Return whether an output says that one of several labels of the row is in two minds."""
    if name not in ("probabilities", "scores"):
        return _is_near(value, name, tolerance)  # of one target: it has classes of its own
    numbers = _numbers(value)
    middle = 0.5 if name == "probabilities" else 0.0
    return numbers is not None and bool((np.abs(numbers - middle) <= tolerance).any())


def _plain(array: Array) -> Any:
    value = array[0] if array.ndim else array
    found = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

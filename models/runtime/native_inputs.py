"""Inputs of a native version as the one table that its library takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from models.errors import InputRefused, LoadFailed
from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.ident import shown

_NUMBERS: Final = ("FP32", "FP64")


class NativeInputs:
    """Checks inputs and joins them to ``(rows, features)``.

    The signature has either one matrix, or one ``(rows, 1)`` input for each feature: FP32 or FP64
    for a number; BYTES or INT64 with ``categories`` for the position of the value among these, NaN
    for any other value; BYTES without for text that goes to the library as it is.
    """

    def __init__(
        self, signature: Signature, dtype: np.dtype[np.floating], *, takes_text: bool
    ) -> None:
        self._specs = signature.inputs
        self._by_name = {spec.name: spec for spec in self._specs}
        self._dtype: np.dtype[Any] = dtype
        self._codes: dict[str, dict[str | int, int]] = {}
        for spec in self._specs:
            self._check(spec, takes_text=takes_text)
        if any(spec.datatype == "BYTES" and spec.categories is None for spec in self._specs):
            self._dtype = np.dtype(object)

    @property
    def features(self) -> int:
        """Features of the table."""
        return sum(spec.shape[1] for spec in self._specs)

    def table(self, inputs: Mapping[str, Array]) -> Array:
        """Return the table, or raise InputRefused naming the input."""
        if len(inputs) > len(self._specs) or inputs.keys() - self._by_name.keys():
            unknown = min(set(inputs) - set(self._by_name))
            raise InputRefused(f"input {shown(unknown)} is unknown")
        columns = [self._column(spec, inputs) for spec in self._specs]
        if len(columns) == 1:
            return np.ascontiguousarray(columns[0], dtype=self._dtype)
        rows = len(columns[0])
        table = np.empty((rows, len(columns)), dtype=self._dtype)
        for index, (spec, column) in enumerate(zip(self._specs, columns, strict=True)):
            if len(column) != rows:
                raise InputRefused(
                    f"input {spec.name!r} has {len(column)} rows, {self._specs[0].name!r} {rows}"
                )
            table[:, index] = column[:, 0]
        return table

    def _check(self, spec: TensorSpec, *, takes_text: bool) -> None:
        is_matrix = len(self._specs) == 1 and spec.datatype in _NUMBERS
        rows, *widths = spec.shape or (0,)
        fits = widths == [1] or (is_matrix and len(widths) == 1 and widths[0] > 0)
        if not fits or rows not in (-1, 1):
            raise LoadFailed(
                f"signature.inputs: {shown(spec.name)} has shape {list(spec.shape)}, "
                "a native model takes one matrix or columns [-1, 1]"
            )
        if spec.datatype in _NUMBERS:
            return
        if spec.categories is not None and spec.datatype in ("BYTES", "INT64"):
            self._codes[spec.name] = _codes(spec)
        elif not (takes_text and spec.datatype == "BYTES"):
            raise LoadFailed(
                f"signature.inputs: {shown(spec.name)} is {spec.datatype} without categories"
            )

    def _column(self, spec: TensorSpec, inputs: Mapping[str, Array]) -> Array:
        array = inputs.get(spec.name)
        if array is None:
            raise InputRefused(f"input {spec.name!r} is missing")
        if array.dtype != numpy_dtype(spec.datatype):
            raise InputRefused(f"input {spec.name!r}: got {array.dtype}, expected {spec.datatype}")
        if array.ndim != 2 or array.shape[1] != spec.shape[1]:
            raise InputRefused(
                f"input {spec.name!r}: got shape {list(array.shape)}, expected {list(spec.shape)}"
            )
        codes = self._codes.get(spec.name)
        if codes is not None:
            found = [codes.get(value, np.nan) for value in array[:, 0].tolist()]
            return np.array(found, dtype=np.float64)[:, None]
        if spec.datatype == "BYTES":
            return _texts(spec, array)
        return array


def _codes(spec: TensorSpec) -> dict[str | int, int]:
    values = spec.categories or ()
    try:
        if spec.datatype == "INT64":
            return {int(value): code for code, value in enumerate(values)}
    except ValueError:
        raise LoadFailed(
            f"signature.inputs: the categories of {shown(spec.name)} are no whole numbers"
        ) from None
    return {value: code for code, value in enumerate(values)}


def _texts(spec: TensorSpec, array: Array) -> Array:
    for value in array[:, 0]:
        if not isinstance(value, str):
            raise InputRefused(f"input {spec.name!r}: a text is not UTF-8")
    return array

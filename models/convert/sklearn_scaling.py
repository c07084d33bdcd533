"""Normalizer and PowerTransformer for skl2onnx, whose own lose rows of zeros, zeros, and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.convert.sklearn_writer import Writer
from models.servable import Array

_TINY = np.finfo(np.float64).eps


def convert_normalizer(scope: Any, operator: Any, container: Any) -> None:
    """Write a Normalizer, called by skl2onnx; a row of zeros stays one."""
    write = Writer(scope, container, operator)
    matrix = write.numbers()
    axis = write.constant(np.array([1], np.int64))
    kind = operator.raw_operator.norm
    size = write.add("Abs", matrix)
    if kind == "max":
        norm = write.add("ReduceMax", size, axis, keepdims=1)
    elif kind == "l1":
        norm = write.add("ReduceSum", size, axis, keepdims=1)
    else:
        squares = write.add("Mul", matrix, matrix)
        norm = write.add("Sqrt", write.add("ReduceSum", squares, axis, keepdims=1))
    # As scikit-learn's _handle_zeros_in_scale: what is nearly nothing is not divided by.
    least = write.number(10.0 * np.finfo(np.float64).eps)
    is_zero = write.add("Less", norm, least)
    safe = write.add("Where", is_zero, write.number(1.0), norm)
    write.result(write.add("Div", matrix, safe))


def convert_power(scope: Any, operator: Any, container: Any) -> None:
    """Write a PowerTransformer, called by skl2onnx."""
    model = operator.raw_operator
    write = Writer(scope, container, operator)
    matrix = write.numbers()
    lambdas = np.asarray(model.lambdas_, np.float64)
    if model.method == "box-cox":
        result = _power(write, write.add("Log", matrix), lambdas)
    else:
        zero, one = write.number(0.0), write.number(1.0)
        above = write.add("Log", write.add("Add", write.add("Max", matrix, zero), one))
        flipped = write.add("Max", write.add("Neg", matrix), zero)
        below = write.add("Log", write.add("Add", flipped, one))
        positive = _power(write, above, lambdas)
        negative = write.add("Neg", _power(write, below, 2.0 - lambdas))
        is_positive = write.add("GreaterOrEqual", matrix, zero)
        result = write.add("Where", is_positive, positive, negative)
    if model.standardize:
        scaler = model._scaler  # noqa: SLF001 (there is no public way to it)
        result = write.add("Sub", result, write.number(scaler.mean_[None, :]))
        result = write.add("Div", result, write.number(scaler.scale_[None, :]))
    write.result(write.add("Where", write.add("IsNaN", matrix), matrix, result))


def shape_as_fed(operator: Any) -> None:
    """Tell skl2onnx that as many columns come out as went in."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    width = int(operator.raw_operator.n_features_in_)
    operator.outputs[0].type = (DoubleTensorType if is_double else FloatTensorType)([None, width])


def _power(write: Writer, logarithm: str, lambdas: Array) -> str:
    """Return ``(exp(lambda * log) - 1) / lambda`` of each column, the logarithm for lambda zero."""
    is_zero = np.abs(lambdas) < _TINY
    safe = write.number(np.where(is_zero, 1.0, lambdas)[None, :])
    grown = write.add("Exp", write.add("Mul", logarithm, safe))
    raised = write.add("Div", write.add("Sub", grown, write.number(1.0)), safe)
    return write.add("Where", write.constant(is_zero[None, :]), logarithm, raised)

"""SplineTransformer for skl2onnx: each basis function as a polynomial between two knots."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.sklearn_writer import Writer
from models.errors import ConversionRefused
from models.servable import Array

_KNOWN: Final = ("constant", "linear", "continue", "periodic")


def convert_splines(scope: Any, operator: Any, container: Any) -> None:
    """Write a SplineTransformer, called by skl2onnx."""
    model = operator.raw_operator
    if model.extrapolation not in _KNOWN:
        raise ConversionRefused(
            f"SplineTransformer: extrapolation={model.extrapolation!r} refuses rows beyond the "
            f"knots, which no graph does: use one of {', '.join(_KNOWN)}"
        )
    if not model.degree:
        raise ConversionRefused(
            "SplineTransformer: degree=0 refuses rows above the knots: use KBinsDiscretizer"
        )
    # Its loop over the columns counts the degree up once for all that follow (scikit-learn 1.9).
    if model.degree == 1 and model.extrapolation == "linear" and len(model.bsplines_) > 1:
        raise ConversionRefused(
            "SplineTransformer: with degree=1 and extrapolation='linear' scikit-learn continues "
            "the first column only as it should: use degree=2, or extrapolation='constant'"
        )
    write = Writer(scope, container, operator)
    matrix = write.numbers()
    parts = []
    for place, spline in enumerate(model.bsplines_):
        column = write.column(matrix, place)
        basis = _basis(write, column, spline, model.extrapolation)
        if not model.include_bias:
            kept = np.arange(spline.c.shape[1] - 1)
            basis = write.add("Gather", basis, write.constant(kept), axis=1)
        if getattr(model, "handle_missing", "error") == "zeros":
            basis = write.add("Where", write.add("IsNaN", column), write.number(0.0), basis)
        parts.append(basis)
    write.result(parts[0] if len(parts) == 1 else write.add("Concat", *parts, axis=1))


def shape_of_splines(operator: Any) -> None:
    """Tell skl2onnx how many columns come out."""
    kind = type(operator.inputs[0].type)
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    if kind is Int64TensorType:
        kind = FloatTensorType
    operator.outputs[0].type = kind([None, int(operator.raw_operator.n_features_out_)])


def _basis(write: Writer, x: str, spline: Any, extrapolation: str) -> str:
    """Return ``(rows, splines)``: all basis functions of one column."""
    degree = int(spline.k)
    inner = np.unique(spline.t[degree : len(spline.t) - degree])
    low, high = inner[0], inner[-1]
    if len(inner) == 1:
        raise ConversionRefused("SplineTransformer: a column had one value only: remove it first")
    if extrapolation == "constant":
        x = write.add("Max", write.add("Min", x, write.number(high)), write.number(low))
    elif extrapolation == "periodic":
        turns = write.add("Div", write.add("Sub", x, write.number(low)), write.number(high - low))
        turns = write.add("Floor", turns)
        x = write.add("Sub", x, write.add("Mul", turns, write.number(high - low)))
    starts, table = _polynomials(spline, inner, has_lines=extrapolation == "linear")
    # Which segment: one for each knot that the value has reached, the first and last without end.
    reached = write.add("GreaterOrEqual", x, write.number(starts[None, 1:]))
    axis = write.constant(np.array([1], np.int64))
    place = write.add("ReduceSum", write.add("Cast", reached, to=7), axis, keepdims=0)
    begin = write.add("Gather", write.number(starts), place, axis=0)
    shape = write.constant(np.array([-1, 1], np.int64))
    offset = write.add("Sub", x, write.add("Reshape", begin, shape))
    result = write.add("Gather", write.number(table[-1]), place, axis=0)
    for coefficients in table[-2::-1]:
        part = write.add("Gather", write.number(coefficients), place, axis=0)
        result = write.add("Add", write.add("Mul", result, offset), part)
    return result


def _polynomials(spline: Any, inner: Array, *, has_lines: bool) -> tuple[Array, Array]:
    """Return where segments start, and their coefficients ``(powers, segments, splines)``.

    ``has_lines``: beyond the knots a line goes on from the value there.
    """
    degree = int(spline.k)
    factorial = 1.0
    rows = []
    for power in range(degree + 1):
        factorial *= max(power, 1)
        rows.append(np.asarray(spline(inner[:-1], nu=power)) / factorial)
    table = np.stack(rows)
    starts = inner[:-1]
    if has_lines:
        ends = inner[[0, -1]]
        lines = np.zeros((degree + 1, 2, table.shape[2]))
        lines[0] = spline(ends)
        lines[1] = spline(ends, nu=1)  # at the last knot that of the segment before it
        # Before the first knot everything is measured from it, too.
        starts = np.concatenate([inner[:1], inner[:-1], inner[-1:]])
        table = np.concatenate([lines[:, :1], table, lines[:, 1:]], axis=1)
    return starts, table

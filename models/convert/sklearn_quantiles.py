"""QuantileTransformer for skl2onnx, whose own takes minutes and does not know the normal output.

The interpolation is numpy's, from both sides as scikit-learn does it, so that repeated quantiles
come out alike. The normal quantile is algorithm AS 241 (Wichura, 1988), exact to 16 digits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.sklearn_writer import Writer
from models.errors import ConversionRefused
from models.servable import Array

# As scikit-learn's BOUNDS_THRESHOLD: how near to the ends counts as there.
_EDGE: Final = 1e-7
_CENTRAL: Final = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3),
)  # fmt: skip
_TAIL: Final = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip
_CENTRAL_HALF: Final = 0.425
_CENTRAL_SHIFT: Final = 0.180625
_TAIL_SHIFT: Final = 1.6


def convert_quantiles(scope: Any, operator: Any, container: Any) -> None:
    """Write a QuantileTransformer, called by skl2onnx."""
    model = operator.raw_operator
    write = Writer(scope, container, operator)
    if not write.is_double:
        raise ConversionRefused("QuantileTransformer: its quantiles are compared in double only")
    quantiles = np.asarray(model.quantiles_, np.float64)
    if not np.isfinite(quantiles).all():
        raise ConversionRefused(
            "QuantileTransformer: a column had no value in training: remove it first"
        )
    matrix = write.numbers()
    is_normal = model.output_distribution == "normal"
    columns = [
        _column(
            write, write.column(matrix, place), values, np.asarray(model.references_), is_normal
        )
        for place, values in enumerate(quantiles.T)
    ]
    table = columns[0] if len(columns) == 1 else write.add("Concat", *columns, axis=1)
    if is_normal:
        table = _normal_quantile(write, table)
    write.result(write.add("Where", write.add("IsNaN", matrix), matrix, table))


def _column(write: Writer, x: str, quantiles: Array, references: Array, is_normal: bool) -> str:
    low, high = write.number(quantiles[0]), write.number(quantiles[-1])
    inside = write.add("Max", write.add("Min", x, high), low)
    # Ascending: the segment that begins at the last quantile not above the value.
    place = _count(write, "GreaterOrEqual", inside, quantiles)
    rising = np.diff(references) / _positive(np.diff(quantiles))
    start = np.concatenate([quantiles[:1], quantiles])
    base = np.concatenate([references[:1], references])
    slope = np.concatenate([[0.0], rising, [0.0]])
    up = _line(write, inside, place, start, base, slope)
    # Descending: the segment that ends at the first quantile not below the value.
    place = _count(write, "Greater", inside, quantiles)
    down = _line(write, inside, place, quantiles, references, np.concatenate([[0.0], rising]))
    mean = write.add("Mul", write.add("Add", up, down), write.number(0.5))
    if is_normal:
        edge = write.number(_EDGE)
        is_high = write.add("Greater", write.add("Add", x, edge), high)
        is_low = write.add("Less", write.add("Sub", x, edge), low)
    else:
        is_high = write.add("Equal", inside, high)
        is_low = write.add("Equal", inside, low)
    result = write.add("Where", is_high, write.number(1.0), mean)
    return write.add("Where", is_low, write.number(0.0), result)


def _positive(widths: Array) -> Array:
    # Between equal quantiles nothing lies: no slope of these is ever asked for.
    return np.where(widths > 0.0, widths, np.inf)


def _count(write: Writer, op: str, x: str, quantiles: Array) -> str:
    """Return how many quantiles a value is above, ``(rows, 1)`` int64."""
    above = write.add(op, x, write.number(quantiles[None, :]))
    axis = write.constant(np.array([1], np.int64))
    return write.add("ReduceSum", write.add("Cast", above, to=7), axis, keepdims=1)


def _line(
    write: Writer, x: str, place: str, start: Array, base: Array, slope: Array
) -> str:  # the line of one segment at ``x``
    begin, value, rise = (
        write.add("Gather", write.number(table), place, axis=0) for table in (start, base, slope)
    )
    return write.add("Add", value, write.add("Mul", write.add("Sub", x, begin), rise))


def _normal_quantile(write: Writer, p: str) -> str:
    edge = _EDGE - np.spacing(1)
    p = write.add("Max", write.add("Min", p, write.number(1.0 - edge)), write.number(edge))
    q = write.add("Sub", p, write.number(0.5))
    square = write.add("Mul", q, q)
    central = write.add("Sub", write.number(_CENTRAL_SHIFT), square)
    middle = write.add("Mul", q, _ratio(write, central, _CENTRAL))
    smaller = write.add("Min", p, write.add("Sub", write.number(1.0), p))
    far = write.add("Sqrt", write.add("Neg", write.add("Log", smaller)))
    # 1e-7 from an end is sqrt(-log) = 4.01: the third formula of AS 241 is for more than 5.
    tail = _ratio(write, write.add("Sub", far, write.number(_TAIL_SHIFT)), _TAIL)
    tail = write.add("Mul", tail, write.add("Sign", q))
    is_central = write.add("LessOrEqual", write.add("Abs", q), write.number(_CENTRAL_HALF))
    return write.add("Where", is_central, middle, tail)


def _ratio(write: Writer, x: str, coefficients: tuple[tuple[float, ...], ...]) -> str:
    return write.add("Div", *(_polynomial(write, x, row) for row in coefficients))


def _polynomial(write: Writer, x: str, coefficients: tuple[float, ...]) -> str:
    result = write.number(coefficients[-1])
    for value in reversed(coefficients[:-1]):
        result = write.add("Add", write.add("Mul", result, x), write.number(value))
    return result

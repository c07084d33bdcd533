"""Tables that are zero nearly everywhere, such as counted terms: only what is not zero is held.

A row is a list of columns with a number for each; what it lacks to the longest row is filled up
with a column that does not exist, the one after the last, and the number 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from models.errors import ConversionRefused
from models.servable import Array

if TYPE_CHECKING:
    from models.convert.predictors.compiler import Compiler

_NORMS: Final = ("l1", "l2", "max")


@dataclass(frozen=True, slots=True)
class Sparse:
    """Names of tensors, and the number of columns.

    ``places``: ``(rows, entries)`` int64, columns, ``width`` where there is none. ``values``: of
    the same shape, in the compiler's precision. No column comes twice in a row, but that one.
    ``has_zeros``: scikit-learn holds this table with its zeros.
    """

    places: str
    values: str
    width: int
    has_zeros: bool = False


def counted(compiler: Compiler, tensor: str, width: int) -> Sparse:
    """Return the table of a tensor ``(rows, entries, 2)`` int64 of columns and counts."""
    places, counts = (
        compiler.add("Gather", tensor, compiler.whole(side), axis=2) for side in (0, 1)
    )
    return Sparse(places, compiler.cast(counts), width)


def dense(compiler: Compiler, table: Sparse, fill: float = 0.0) -> str:
    """Return the table as one matrix ``(rows, width)``, with ``fill`` where nothing is held."""
    rows = compiler.add("Shape", table.places, start=0, end=1)
    shape = compiler.add("Concat", rows, compiler.whole([table.width + 1]), axis=0)
    empty = compiler.add("Expand", compiler.number([[fill]]), shape)
    full = compiler.add("ScatterElements", empty, table.places, table.values, axis=1)
    ends = [compiler.whole([n]) for n in (0, table.width, 1)]
    return compiler.add("Slice", full, *ends)


def affine(compiler: Compiler, table: Sparse, coefficients: Array, intercept: Any) -> str:
    """Return ``table @ coefficients.T + intercept`` as ``(rows, len(coefficients))``."""
    weights = np.asarray(coefficients, np.float64).T
    if weights.shape[0] != table.width:
        raise ConversionRefused(
            f"{weights.shape[0]} coefficients for a table of {table.width} columns"
        )
    none = np.zeros((1, weights.shape[1]))
    own = compiler.number(np.concatenate([weights, none]))
    chosen = compiler.add("Gather", own, table.places, axis=0)
    values = compiler.add("Unsqueeze", table.values, compiler.whole([1]))
    product = compiler.add("Squeeze", compiler.add("MatMul", values, chosen), compiler.whole([1]))
    return compiler.add("Add", product, compiler.number(np.atleast_1d(intercept)))


def scaled(compiler: Compiler, table: Sparse, factors: Any) -> Sparse:
    """Return the table with each column multiplied by its factor."""
    values = np.append(np.asarray(factors, np.float64).ravel(), 0.0)
    chosen = compiler.add("Gather", compiler.number(values), table.places, axis=0)
    return replace(table, values=compiler.add("Mul", table.values, chosen))


def normalised(compiler: Compiler, table: Sparse, norm: str | None) -> Sparse:
    """Return the table with rows divided by their norm; a row of zeros stays one."""
    if norm is None:
        return table
    if norm not in _NORMS:
        raise ConversionRefused(f"norm {norm!r} is not supported: use one of {', '.join(_NORMS)}")
    if norm == "l2":
        squares = compiler.add("Mul", table.values, table.values)
        length = compiler.add("Sqrt", compiler.summed(squares))
    elif norm == "l1":
        length = compiler.summed(compiler.add("Abs", table.values))
    else:
        sizes = compiler.add("Abs", table.values)
        length = compiler.add("ReduceMax", sizes, compiler.whole([1]), keepdims=1)
    is_zero = compiler.add("Equal", length, compiler.number(0.0))
    length = compiler.add("Where", is_zero, compiler.number(1.0), length)
    return replace(table, values=compiler.add("Div", table.values, length))


def damped(compiler: Compiler, table: Sparse) -> Sparse:
    """Return the table with ``1 + log(value)`` for each value that is not zero."""
    grown = compiler.add("Add", compiler.add("Log", table.values), compiler.number(1.0))
    is_zero = compiler.add("Equal", table.values, compiler.number(0.0))
    return replace(table, values=compiler.add("Where", is_zero, compiler.number(0.0), grown))


def above(compiler: Compiler, table: Sparse, threshold: float) -> Sparse:
    """Return the table with 1 for each value above a threshold, which must not be negative."""
    if threshold < 0:
        raise ConversionRefused(f"threshold {threshold:g}: zeros of a sparse table are above it")
    flags = compiler.add("Greater", table.values, compiler.number(threshold))
    return replace(table, values=compiler.cast(flags))


def picked(compiler: Compiler, table: Sparse, kept: Sequence[int]) -> Sparse:
    """Return some columns of the table."""
    places = np.full(table.width + 1, len(kept), np.int64)
    places[list(kept)] = np.arange(len(kept))
    moved = compiler.add("Gather", compiler.whole(places), table.places, axis=0)
    is_kept = compiler.add("Less", moved, compiler.whole(len(kept)))
    values = compiler.add("Where", is_kept, table.values, compiler.number(0.0))
    return Sparse(moved, values, len(kept), table.has_zeros)


def joined(compiler: Compiler, tables: Sequence[Sparse]) -> Sparse:
    """Return tables side by side."""
    if len(tables) == 1:
        return tables[0]
    width, before, moved = sum(table.width for table in tables), 0, []
    for table in tables:
        places = np.append(np.arange(before, before + table.width), width)
        moved.append(compiler.add("Gather", compiler.whole(places), table.places, axis=0))
        before += table.width
    values = compiler.add("Concat", *(table.values for table in tables), axis=1)
    return Sparse(compiler.add("Concat", *moved, axis=1), values, width)


def of_matrix(compiler: Compiler, matrix: str, width: int) -> Sparse:
    """Return a matrix ``(rows, width)`` of numbers as such a table."""
    places = compiler.add(
        "Expand", compiler.whole(np.arange(width)[None, :]), compiler.add("Shape", matrix)
    )
    return Sparse(places, matrix, width)

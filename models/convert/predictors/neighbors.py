"""Nearest neighbours, with distances in double: equal ones must stay equal."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.graph import class_labels
from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.convert.predictors.targets import split_targets
from models.errors import ConversionRefused
from models.servable import Array

# Looked at beyond the k wanted, because the fast distance that finds them is rounded.
_SPARE: Final = 16


def _neighbours(compiler: Compiler, estimator: Any, source: Source) -> tuple[str, str]:
    """Return the indices ``(rows, k)`` of the nearest training rows, and their distances."""
    name = type(estimator).__name__
    if compiler.precision != "float64":
        raise ConversionRefused(f"{name}: distances are computed in double only")
    if callable(estimator.weights):
        raise ConversionRefused(f"{name}: weights by a Python function are not supported")
    metric = estimator.effective_metric_
    if metric not in ("euclidean", "manhattan", "chebyshev"):
        raise ConversionRefused(
            f"{name}: metric {metric!r} is not supported: use euclidean, manhattan or chebyshev"
        )
    fitted = estimator._fit_X  # noqa: SLF001 (there is no public way to the training rows)
    rows = np.asarray(fitted.toarray() if hasattr(fitted, "toarray") else fitted, np.float64)
    matrix = compiler.matrix(source)
    count = int(estimator.n_neighbors)
    if metric == "euclidean":
        spare = min(count + _SPARE, len(rows))
        candidates = _roughly_nearest(compiler, matrix, rows, spare)
        taken = compiler.add("Gather", compiler.number(rows), candidates, axis=0)
    else:
        spare, candidates = len(rows), ""
        taken = compiler.number(rows[None, :, :])
    distances = _distances(compiler, matrix, taken, metric, rows.shape[1])
    nearest, places = _smallest(compiler, distances, count)
    if candidates:
        places = compiler.add("GatherElements", candidates, places, axis=1)
    return places, nearest


def _roughly_nearest(compiler: Compiler, matrix: str, rows: Array, count: int) -> str:
    """Return the candidates in the order of the training rows, as ties are settled in it."""
    product = compiler.add("MatMul", matrix, compiler.number(-2.0 * rows.T))
    squares = compiler.number((rows**2).sum(axis=1)[None, :])
    _, places = _smallest(compiler, compiler.add("Add", product, squares), count)
    ordered, _ = _top(compiler, places, count, is_largest=False)
    return ordered


def _distances(compiler: Compiler, matrix: str, taken: str, metric: str, width: int) -> str:
    """Return ``(rows, taken)``, each sum in the order of the columns, as the native loops add."""
    total = ""
    for column in range(width):
        own = compiler.gather(matrix, [column])
        theirs = compiler.add("Gather", taken, compiler.whole(column), axis=2)
        part = compiler.add("Sub", own, theirs)
        part = (
            compiler.add("Mul", part, part)
            if metric == "euclidean"
            else (compiler.add("Abs", part))
        )
        if not total:
            total = part
        else:
            total = compiler.add("Max" if metric == "chebyshev" else "Add", total, part)
    return compiler.add("Sqrt", total) if metric == "euclidean" else total


def _smallest(compiler: Compiler, tensor: str, count: int) -> tuple[str, str]:
    return _top(compiler, tensor, count, is_largest=False)


def _top(compiler: Compiler, tensor: str, count: int, *, is_largest: bool) -> tuple[str, str]:
    return compiler.graph.add_two(
        "TopK", tensor, compiler.whole([count]), axis=1, largest=int(is_largest), sorted=1
    )


def _shares(compiler: Compiler, estimator: Any, distances: str) -> str:
    """Return each neighbour's weight ``(rows, k)``; those at no distance take it all."""
    one = compiler.number(1.0)
    if estimator.weights in (None, "uniform"):
        weights = compiler.add("Add", compiler.add("Mul", distances, compiler.number(0.0)), one)
    else:
        is_here = compiler.add("Equal", distances, compiler.number(0.0))
        here = compiler.cast(is_here)
        any_here = compiler.add("Greater", compiler.summed(here), compiler.number(0.0))
        safe = compiler.add("Where", is_here, one, distances)
        weights = compiler.add("Where", any_here, here, compiler.add("Div", one, safe))
    return compiler.add("Div", weights, compiler.summed(weights))


def _weighted(compiler: Compiler, estimator: Any, source: Source, table: Array) -> str:
    """Return the weighted sum of ``table[neighbour]`` for each row: ``(rows, targets)``."""
    places, distances = _neighbours(compiler, estimator, source)
    shares = compiler.add("Unsqueeze", _shares(compiler, estimator, distances), compiler.whole([2]))
    values = compiler.add("Gather", compiler.number(table), places, axis=0)
    product = compiler.add("Mul", values, shares)
    return compiler.add("ReduceSum", product, compiler.whole([1]), keepdims=0)


def _classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    codes = np.asarray(estimator._y)  # noqa: SLF001
    if isinstance(estimator.classes_, list):
        labels = [class_labels(classes) for classes in estimator.classes_]
        tables = [np.eye(len(one))[codes[:, place]] for place, one in enumerate(labels)]
        found = _weighted(compiler, estimator, source, np.concatenate(tables, axis=1))
        return Predicted(targets=split_targets(compiler, found, labels))
    table = np.eye(len(estimator.classes_))[codes]
    probabilities = _weighted(compiler, estimator, source, table)
    return Predicted(index=compiler.best(probabilities), probabilities=probabilities)


def _regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    values = np.asarray(estimator._y, np.float64)  # noqa: SLF001
    return Predicted(values=_weighted(compiler, estimator, source, values.reshape(len(values), -1)))


HANDLERS: Final[dict[str, Handler]] = {
    "KNeighborsClassifier": _classifier,
    "KNeighborsRegressor": _regressor,
}

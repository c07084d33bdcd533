"""Writes an estimator's prediction into a graph, the estimators inside it included.

Every family of ours is a function ``(compiler, estimator, source) -> Predicted``; an estimator
without one goes to skl2onnx as a piece by itself. All floats inside are of one precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from onnx import TensorProto

from models.convert.graph import Graph, class_labels
from models.convert.predictors import sparse
from models.convert.predictors.piece import Piece, add_piece
from models.convert.predictors.sparse import Sparse
from models.convert.trees import ML_DOMAIN, Precision
from models.errors import ConversionRefused
from models.servable import Array


@dataclass(frozen=True, slots=True)
class Source:
    """The table that an estimator sees: one matrix, or one tensor ``(rows, 1)`` for each column.

    ``tensors``: "" for a column that nothing uses. ``kinds``: "number", "text" or "code" of each
    tensor. ``names``: of the columns, as transformers choose them; empty for a matrix.
    ``width``: columns in all. ``sparse``: what there is instead of tensors where the table is zero
    nearly everywhere.
    """

    tensors: tuple[str, ...]
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    width: int
    sparse: Sparse | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One of several targets of classes: its labels, and the place ``(rows,)`` int64 among them.

    ``probabilities``: ``(rows, classes)``, "" where the estimator has none.
    """

    index: str
    labels: tuple[str | int, ...]
    probabilities: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Names of what an estimator gives; "" for what it does not give.

    ``index``: ``(rows,)`` int64, the place of the label in ``classes_``; where a row has several
    labels, ``(rows, labels)`` of 0 and 1. ``label``: ``(rows,)`` int64, of clusters and outliers.
    ``values``: ``(rows, targets)`` numbers of a regressor. ``probabilities``: ``(rows, classes)``,
    or of each of several labels. ``scores``: decision_function, ``(rows, n)``. ``targets``: of an
    estimator that answers several classes at once, in place of ``index``.
    """

    index: str = ""
    label: str = ""
    values: str = ""
    probabilities: str = ""
    scores: str = ""
    targets: tuple[Target, ...] = ()


Handler: TypeAlias = Callable[["Compiler", Any, Source], Predicted]
_ROOTS: Final = ("sklearn", "imblearn", "lightgbm", "xgboost", "catboost")


def library_of(estimator: Any) -> str:
    """Return the name of the library that an estimator is from, without importing it."""
    return type(estimator).__module__.partition(".")[0]


class Compiler:
    """One graph being written. Not shared between threads.

    ``counted``: by the id of each vectoriser the input ``(rows, entries, 2)`` with what it counts,
    and the number of its columns.
    """

    def __init__(
        self,
        graph: Graph,
        precision: Precision,
        counted: Mapping[int, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        self.graph = graph
        self.counted = counted
        self.precision = precision
        self.dtype = np.float64 if precision == "float64" else np.float32
        self._element = TensorProto.DOUBLE if precision == "float64" else TensorProto.FLOAT
        self._pieces = 0

    def predict(self, estimator: Any, source: Source) -> Predicted:
        """Write one estimator, or raise ConversionRefused naming what is in the way."""
        from models.convert.predictors.families import families

        handler = None
        if library_of(estimator) in _ROOTS:
            handler = families().get(type(estimator).__name__)
        return (handler or written_by_piece)(self, estimator, source)

    def matrix(self, source: Source) -> str:
        """Return the table as one matrix of numbers in the compiler's precision."""
        if source.sparse is not None:
            return sparse.dense(self, source.sparse)
        if "text" in source.kinds or "" in source.tensors:
            raise ConversionRefused("a column that is not a number reaches an estimator")
        parts = [self.cast(tensor) for tensor in source.tensors]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def columns(self, source: Source, chosen: Sequence[int]) -> Source:
        """Return some columns of a table."""
        if source.sparse is not None:
            table = sparse.picked(self, source.sparse, chosen)
            return replace(source, sparse=table, width=table.width)
        if source.names:
            return replace(
                source,
                tensors=tuple(source.tensors[i] for i in chosen),
                kinds=tuple(source.kinds[i] for i in chosen),
                names=tuple(source.names[i] for i in chosen),
                width=len(chosen),
            )
        if list(chosen) == list(range(source.width)):
            return source
        tensor = self.gather(source.tensors[0], chosen)
        return Source((tensor,), source.kinds, (), len(chosen))

    def transformed(self, transformer: Any, source: Source) -> Source:
        """Return the table that a transformer (or the front of a pipeline) makes of a table."""
        from models.convert.predictors.fronts import is_ours, transformed

        if is_ours(transformer, source):
            return transformed(self, transformer, source)
        return self.table(transformer, source)

    def table(self, transformer: Any, source: Source) -> Source:
        """Return the table that skl2onnx makes of a table."""
        pieces = self.piece(transformer, source)
        if len(pieces) != 1:
            steps = [step for _, step in getattr(transformer, "steps", [("", transformer)])]
            names = [type(step).__name__ for step in steps if hasattr(step, "predict")]
            raise ConversionRefused(
                f"{', '.join(names) or type(transformer).__name__}: as a step before the last it "
                "is not supported, for skl2onnx takes its prediction for what it transforms"
            )
        return Source((self.cast(pieces[0]),), ("number",), (), -1)

    def piece(self, estimator: Any, source: Source) -> list[str]:
        """Write an estimator by skl2onnx and return its outputs."""
        if source.sparse is not None:
            source = Source((self.matrix(source),), ("number",), (), source.width)
        self._pieces += 1
        piece = Piece(source.names, source.kinds, source.tensors, source.width, self.precision)
        return add_piece(self.graph, estimator, piece, f"inner{self._pieces}/")

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add one node and return its one output."""
        return self.graph.add(op, *inputs, domain=domain, **attributes)

    def cast(self, tensor: str) -> str:
        """Return a tensor in the compiler's precision."""
        return self.add("Cast", tensor, to=self._element)

    def number(self, values: Any) -> str:
        """Add a constant in the compiler's precision."""
        return self.graph.constant(np.asarray(values, dtype=self.dtype))

    def whole(self, values: Any) -> str:
        """Add an int64 constant."""
        return self.graph.constant(np.asarray(values, dtype=np.int64))

    def gather(self, tensor: str, columns: Sequence[int]) -> str:
        """Return some columns of a matrix."""
        return self.add("Gather", tensor, self.whole(list(columns)), axis=1)

    def shaped(self, tensor: str, *shape: int) -> str:
        """Return a tensor under another shape; -1 is what is left over."""
        return self.add("Reshape", tensor, self.whole(shape))

    def summed(self, tensor: str, axis: int = 1) -> str:
        """Return the sums along an axis, which stays with size 1."""
        return self.add("ReduceSum", tensor, self.whole([axis]), keepdims=1)

    def affine_of(self, source: Source, coefficients: Array, intercept: Any) -> str:
        """Return ``table @ coefficients.T + intercept``, of a sparse table by what is not zero."""
        rows = np.atleast_2d(coefficients)
        if source.sparse is not None:
            return sparse.affine(self, source.sparse, rows, intercept)
        return self.affine(self.matrix(source), rows, intercept)

    def affine(self, tensor: str, coefficients: Array, intercept: Any) -> str:
        """Return ``tensor @ coefficients.T + intercept`` as ``(rows, len(coefficients))``."""
        product = self.add("MatMul", tensor, self.number(np.atleast_2d(coefficients).T))
        return self.add("Add", product, self.number(np.atleast_1d(intercept)))

    def mean(self, tensors: Sequence[str], weights: Sequence[float] | None = None) -> str:
        """Return the weighted mean of tensors of one shape."""
        shares = np.ones(len(tensors)) if weights is None else np.asarray(weights, np.float64)
        return self.weighted_sum(tensors, shares / shares.sum())

    def weighted_sum(self, tensors: Sequence[str], weights: Sequence[float] | Array) -> str:
        """Return the sum of each tensor times its weight."""
        parts = [
            tensor if float(weight) == 1.0 else self.add("Mul", tensor, self.number(weight))
            for tensor, weight in zip(tensors, weights, strict=True)
        ]
        return parts[0] if len(parts) == 1 else self.add("Sum", *parts)

    def best(self, tensor: str, *, is_last: bool = False) -> str:
        """Return the place of the highest of each row; of equals the first, or the last."""
        return self.add("ArgMax", tensor, axis=1, keepdims=0, select_last_index=int(is_last))

    def one_hot(self, index: str, count: int) -> str:
        """Return ``(rows, count)`` with a one at each row's place."""
        column = self.shaped(index, -1, 1)
        return self.cast(self.add("Equal", column, self.whole(np.arange(count)[None, :])))

    def is_positive(self, tensor: str, *, or_zero: bool = False) -> str:
        """Return ``(rows,)`` int64: 1 where a single column is above zero."""
        op = "GreaterOrEqual" if or_zero else "Greater"
        flag = self.add(op, self.shaped(tensor, -1), self.number(0.0))
        return self.add("Cast", flag, to=TensorProto.INT64)

    def flags(self, tensor: str, limit: float) -> str:
        """Return int64 of the shape of ``tensor``: 1 where it is above ``limit``."""
        above = self.add("Greater", tensor, self.number(limit))
        return self.add("Cast", above, to=TensorProto.INT64)

    def joined(self, columns: Sequence[str]) -> str:
        """Return columns ``(rows, n)`` side by side."""
        return columns[0] if len(columns) == 1 else self.add("Concat", *columns, axis=1)

    def both_sides(self, margin: str) -> str:
        """Return the probabilities of two classes from the margin ``(rows, 1)`` of the second.

        Each from the margin itself: 1 - p would lose the small one to rounding.
        """
        negative = self.add("Sigmoid", self.add("Neg", margin))
        return self.add("Concat", negative, self.add("Sigmoid", margin), axis=1)

    def complement(self, positive: str) -> str:
        """Return ``(rows, 2)``: one minus a column, and the column."""
        rest = self.add("Sub", self.number(1.0), positive)
        return self.add("Concat", rest, positive, axis=1)


def index_of(compiler: Compiler, label: str, classes: Any) -> str:
    """Return the place in ``classes`` of labels as skl2onnx gives them."""
    labels = class_labels(classes)
    flat = compiler.shaped(label, -1)
    if list(labels) == list(range(len(labels))):
        return compiler.add("Cast", flat, to=TensorProto.INT64)
    is_text = isinstance(labels[0], str)
    attributes: dict[str, Any] = {
        "keys_strings" if is_text else "keys_int64s": list(labels),
        "values_int64s": list(range(len(labels))),
        "default_int64": -1,
    }
    return compiler.add("LabelEncoder", flat, domain=ML_DOMAIN, **attributes)


def written_by_piece(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    """Let skl2onnx write an estimator, and sort what comes out by what the estimator is."""
    outputs = compiler.piece(estimator, source)
    classes = getattr(estimator, "classes_", None)
    if classes is not None and not isinstance(classes, list):
        index = index_of(compiler, outputs[0], classes)
        if len(outputs) < 2:
            return Predicted(index=index)
        return Predicted(index=index, probabilities=compiler.cast(outputs[1]))
    if hasattr(estimator, "offset_") and len(outputs) > 1:
        scores = compiler.shaped(compiler.cast(outputs[1]), -1, 1)
        return Predicted(label=compiler.shaped(outputs[0], -1), scores=scores)
    if len(outputs) > 1:  # clusterers and mixtures: the label, then distances or probabilities
        second = compiler.cast(outputs[1])
        return Predicted(label=compiler.shaped(outputs[0], -1), probabilities=second)
    return Predicted(values=compiler.cast(outputs[0]))

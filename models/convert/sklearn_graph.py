"""The graph of a scikit-learn model: served inputs, the estimator, served outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx

from models.convert.graph import ONNX_TYPES, Graph, class_labels, label_array
from models.convert.predictors.compiler import Compiler, Predicted, Source
from models.convert.sklearn_columns import Column
from models.convert.sklearn_targets import target_output
from models.convert.terms import Counted
from models.convert.trees import Precision
from models.errors import ConversionRefused
from models.signature import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class Frame:
    """How served inputs become the table that the native model takes.

    ``is_matrix``: one input of all used columns; else one input ``(rows, 1)`` for each.
    ``has_names``: the table is a DataFrame. ``is_split``: the model sees column by column.
    ``is_flat``: the model takes a plain list of texts, not a table. ``counted``: what is counted
    of its texts, None for nothing.
    """

    columns: tuple[Column, ...]
    is_matrix: bool
    has_names: bool
    is_split: bool
    signature: Signature
    is_flat: bool = False
    counted: Counted | None = None

    @property
    def used(self) -> tuple[Column, ...]:
        """Columns that are served."""
        return tuple(column for column in self.columns if column.is_used)

    @property
    def computed(self) -> Signature:
        """What the graph takes and gives: counts in place of texts that are counted."""
        return self.signature if self.counted is None else self.counted.graph


def build_graph(prepared: Any, frame: Frame, precision: Precision) -> onnx.ModelProto:
    """Return the graph of a model, or raise ConversionRefused naming what cannot be converted.

    ``prepared``: a copy of the model whose missing texts are already text.
    """
    graph = Graph()
    counted = frame.counted.tensors if frame.counted is not None else {}
    compiler = Compiler(graph, precision, counted)
    found = compiler.predict(prepared, _source(compiler, frame))
    for spec in frame.signature.outputs:
        _add_output(compiler, spec, found, getattr(prepared, "classes_", None))
    return graph.model(frame.computed)


def _source(compiler: Compiler, frame: Frame) -> Source:
    if frame.is_matrix:
        matrix = frame.signature.inputs[0].name
        kind = frame.used[0].kind
        if kind == "number":
            matrix = compiler.cast(matrix)
        if not frame.is_split:
            return Source((matrix,), (kind,), (), len(frame.used))
        tensors = {c.index: compiler.gather(matrix, [i]) for i, c in enumerate(frame.used)}
    else:
        tensors = {}
        for column, spec in zip(frame.used, frame.signature.inputs, strict=True):
            if column.vectorizers and not column.is_plain:
                continue  # what counts it does not look at it
            is_number = column.kind == "number"
            tensors[column.index] = compiler.cast(spec.name) if is_number else spec.name
    columns = frame.columns
    return Source(
        tuple(tensors.get(column.index, "") for column in columns),
        tuple(column.kind for column in columns),
        tuple(column.name for column in columns),
        len(columns),
    )


def _add_output(compiler: Compiler, spec: TensorSpec, found: Predicted, classes: Any) -> None:
    if spec.name == "label" and len(spec.shape) == 2:
        _add_labels(compiler, spec, found)
        return
    sources = {
        "label": found.index or found.label,
        "probabilities": found.probabilities,
        "scores": found.scores,
        "prediction": found.values,
    } | {target_output(place): target.probabilities for place, target in enumerate(found.targets)}
    source = sources[spec.name]
    if not source:
        raise ConversionRefused(f"scikit-learn: the converted model gives no {spec.name}")
    if spec.name == "label" and found.index:
        labels = compiler.graph.constant(label_array(_labels(classes)))
        source = compiler.add("Gather", labels, source, axis=0)
    elif spec.datatype != "BYTES":
        source = compiler.add("Cast", source, to=ONNX_TYPES[spec.datatype])
    shape = compiler.whole([-1, *spec.shape[1:]])
    compiler.graph.add("Reshape", source, shape, output=spec.name)


def _add_labels(compiler: Compiler, spec: TensorSpec, found: Predicted) -> None:
    """Add several labels a row: of several targets, or 0 and 1 for each label."""
    source = found.index
    if found.targets:
        columns = [
            compiler.add("Gather", compiler.graph.constant(label_array(t.labels)), t.index, axis=0)
            for t in found.targets
        ]
        source = compiler.joined([compiler.shaped(column, -1, 1) for column in columns])
    if not source:
        raise ConversionRefused("scikit-learn: the converted model gives no labels")
    compiler.graph.add("Reshape", source, compiler.whole([-1, spec.shape[1]]), output=spec.name)


def _labels(classes: Any) -> tuple[str | int, ...]:
    if classes is None:
        raise ConversionRefused("scikit-learn: the model gives places of classes, but no classes")
    return class_labels(list(classes))

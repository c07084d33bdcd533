"""scikit-learn estimators and pipelines to ONNX, column by column, with the proof."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnx

from models.convert.graph import (
    Conversion,
    class_labels,
    classification_outputs,
    label_array,
    most_exact,
)
from models.convert.predictors.families import gives_scores
from models.convert.sample import Sample
from models.convert.sklearn_columns import (
    SENTINEL,
    TEXT_INPUT,
    Column,
    final_estimator,
    fitted_columns,
    has_jumps,
    replace_missing_texts,
    sees_columns,
    takes_texts,
)
from models.convert.sklearn_graph import Frame, build_graph
from models.convert.sklearn_rows import Accepted, make_rows, missing_rows, ordinary_row, probe
from models.convert.sklearn_targets import is_several, several_outputs, target_of
from models.convert.terms import counted_answer, counted_of
from models.convert.trees import Precision, library_versions
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, compare, graph_answer
from models.servable import Array
from models.signature import Signature, TensorSpec

MATRIX_INPUT: Final = "input"
_DATATYPES: Final = {"number": "FP32", "text": "BYTES", "code": "INT64"}


def convert_estimator(estimator: Any, sample: Sample | None, tolerance: float) -> Conversion:
    """Convert a fitted estimator or pipeline that predicts."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    name = type(final_estimator(estimator)).__name__
    if not hasattr(estimator, "predict"):
        raise ConversionRefused(f"{name} does not predict: only models with predict can be served")
    columns, has_names = fitted_columns(estimator)
    frame = _frame(estimator, columns, has_names, sample)
    accepted = probe(_native(estimator, frame), frame.used, frame.signature)
    # Vectorisers are not changed, and told apart by what they are.
    kept = {id(part): part for column in columns for part in column.vectorizers}
    prepared = copy.deepcopy(estimator, kept)
    replace_missing_texts(prepared, estimator, columns)
    frame, accepted = _with_missing(estimator, prepared, frame, accepted, tolerance)
    given = _given(sample, frame) if sample is not None else None
    native = _native(estimator, frame)
    rows = make_rows(estimator, frame.used, frame.signature, accepted, given, native)

    def build(precision: Precision) -> onnx.ModelProto:
        return build_graph(prepared, frame, precision)

    order = _order(estimator, frame)
    model, parity, precision = most_exact(
        build, native, rows, tolerance, order, lambda model: _asked_graph(model, frame)
    )
    return Conversion(
        model, frame.signature, parity, precision, "sklearn",
        library_versions("scikit-learn", "skl2onnx", "onnx", "onnxruntime", "numpy", "pandas"),
        counted=frame.counted,
    )  # fmt: skip


def _asked_graph(model: onnx.ModelProto, frame: Frame) -> Answer:
    """Return what a graph answers to served inputs."""
    if frame.counted is None:
        return graph_answer(model)
    return counted_answer(model, frame.counted, frame.signature)


def _given(sample: Sample, frame: Frame) -> Inputs:
    """Return the rows of a sample as served inputs."""
    if not frame.is_flat:
        return sample.inputs(frame.signature)
    from models.convert.text import texts_of

    return {TEXT_INPUT: texts_of(sample, sample.rows)}


def _order(estimator: Any, frame: Frame) -> tuple[Precision, ...]:
    """Return what to try first: double where a rounding before a tree can turn a branch.

    Double for texts too: one may be far longer than those of the proof, and its sums less exact.
    """
    if not frame.is_matrix or has_jumps(estimator):
        return ("float64", "float32")
    return ("float32", "float64")


def _frame(estimator: Any, columns: list[Column], has_names: bool, sample: Sample | None) -> Frame:
    used = [column for column in columns if column.is_used]
    if not used:
        raise ConversionRefused("the pipeline uses none of its columns")
    kinds = {column.kind for column in used}
    is_split = sees_columns(estimator)
    is_flat = takes_texts(estimator)
    is_matrix = kinds == {"number"} or (len(kinds) == 1 and not is_split and not is_flat)
    if is_flat:
        inputs: tuple[TensorSpec, ...] = (TensorSpec(TEXT_INPUT, "BYTES", (-1,)),)
    elif is_matrix:
        names = tuple(column.name for column in used) if has_names else None
        spec = TensorSpec(MATRIX_INPUT, _DATATYPES[used[0].kind], (-1, len(used)), columns=names)
        inputs = (spec,)
    else:
        inputs = tuple(_column_spec(column, sample) for column in used)
    is_split = is_split or not is_matrix
    frame = Frame(
        tuple(columns), is_matrix, has_names, is_split, Signature(inputs, ()), is_flat,
        counted=None if is_matrix else counted_of(used, inputs),
    )  # fmt: skip
    outputs = _outputs(estimator, _one_row(estimator, frame))
    counted = frame.counted.giving(outputs) if frame.counted is not None else None
    return replace(frame, signature=Signature(inputs, outputs), counted=counted)


def _one_row(estimator: Any, frame: Frame) -> Callable[[str], Any]:
    """Return what a method answers for one ordinary row, which shows the shape of its answers."""

    def ask(method: str) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table = _table(frame, ordinary_row(frame.used, frame.signature))
                return _asked(getattr(estimator, method), table)
        # Whatever scikit-learn says of a row that was made up.
        except (ValueError, TypeError, AttributeError, IndexError):
            return None

    return ask


def _column_spec(column: Column, sample: Sample | None) -> TensorSpec:
    datatype = {"number": "FP64", "text": "BYTES", "code": "INT64"}[column.kind]
    is_whole = sample is not None and sample.kind(column.name) == "int"
    # A whole number cannot be missing, so an imputed column stays a float.
    if column.kind == "number" and is_whole and not column.is_imputed:
        datatype = "INT64"
    categories = tuple(str(value) for value in column.categories) or None
    return TensorSpec(column.name, datatype, (-1, 1), categories=categories)


def _outputs(estimator: Any, ask: Callable[[str], Any]) -> tuple[TensorSpec, ...]:
    classes = getattr(estimator, "classes_", None)
    if classes is not None and not len(classes):  # what a regressor of CatBoost has
        classes = None
    final = final_estimator(estimator)
    found = ask("predict")
    predicted = None if found is None else np.asarray(found)
    if is_several(classes, predicted):
        return several_outputs(estimator, classes, predicted, ask)
    if classes is not None:
        label, probabilities = classification_outputs(class_labels(classes))
        if hasattr(estimator, "predict_proba"):
            return label, probabilities
        if not gives_scores(final):
            return (label,)
        return label, _scores(classes, ask("decision_function"))
    if hasattr(final, "offset_") and hasattr(estimator, "decision_function"):
        return (
            TensorSpec("label", "INT64", (-1,), method="predict"),
            TensorSpec("scores", "FP32", (-1,), method="decision_function"),
        )
    if hasattr(final, "weights_") and hasattr(estimator, "predict_proba"):  # a mixture
        return classification_outputs(range(len(final.weights_)))
    if any(hasattr(final, name) for name in ("cluster_centers_", "subcluster_labels_")):
        return (TensorSpec("label", "INT64", (-1,), method="predict"),)
    shape = (-1,) if predicted is None else (-1, *predicted.shape[1:])
    return (TensorSpec("prediction", "FP32", shape, method="predict"),)


def _scores(classes: Any, found: Any) -> TensorSpec:
    """Return the spec of decision_function: a column for each class, or one margin for two."""
    if len(classes) == 2:
        return TensorSpec("scores", "FP32", (-1,), method="decision_function")
    shape = np.shape(found)
    width = len(classes) if len(shape) < 2 else shape[1]
    labels = class_labels(classes) if width == len(classes) else None
    return TensorSpec("scores", "FP32", (-1, width), labels=labels, method="decision_function")


def _native(estimator: Any, frame: Frame) -> Answer:
    """Return what scikit-learn itself predicts for served inputs."""

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        table = _table(frame, inputs)
        found: dict[str, Array] = {}
        asked: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for spec in frame.signature.outputs:
                method = spec.method or "predict"
                try:
                    if method not in asked:
                        asked[method] = _asked(getattr(estimator, method), table)
                    target = target_of(spec.name)
                    predicted = asked[method] if target is None else asked[method][target]
                    found[spec.name] = _as_served(np.asarray(predicted), spec)
                except (ValueError, TypeError) as error:
                    reason = str(error).strip().splitlines()[0]
                    raise ConversionRefused(
                        f"scikit-learn itself refuses a row, perhaps of the sample: {reason}"
                    ) from error
        return found

    return answer


def _asked(method: Callable[[Any], Any], table: Any) -> Any:
    try:
        return method(table)
    except ValueError as error:
        if "Buffer dtype mismatch" not in str(error):
            raise
        # Trained on a float32 table, KMeans takes no other.
        return method(table.astype(np.float32))


def _as_served(predicted: Array, spec: TensorSpec) -> Array:
    # One column is what CatBoost predicts for several classes.
    labels = predicted if len(spec.shape) == 2 else predicted.ravel()
    if spec.datatype == "BYTES":
        return label_array([str(value) for value in labels.ravel()]).reshape(labels.shape)
    if spec.datatype == "INT64":
        return labels.astype(np.int64)
    return predicted.astype(np.float64)


def _table(frame: Frame, inputs: Inputs) -> Any:
    if frame.is_flat:
        return inputs[TEXT_INPUT].tolist()
    rows = len(next(iter(inputs.values())))
    if frame.is_matrix:
        matrix = inputs[MATRIX_INPUT]
        # Training tables are doubles nearly always; a float32 table would be computed otherwise.
        if matrix.dtype != object:
            matrix = matrix.astype(np.float64 if matrix.dtype.kind == "f" else np.int64)
        served = {c.name: matrix[:, i] for i, c in enumerate(frame.used)}
    else:
        served = {c.name: inputs[c.name][:, 0] for c in frame.used}
    cells = {
        c.index: _texts(served[c.name], none=c.none_is_missing)
        if served[c.name].dtype == object
        else served[c.name]
        for c in frame.used
    }
    zeros = np.zeros(rows)
    ordered = {c.name: cells.get(c.index, zeros) for c in frame.columns}
    if frame.has_names:
        import pandas as pd

        # pandas would infer a column of texts, and make NaN of None in it.
        kept = {c.name for c in frame.used if c.none_is_missing}
        return pd.DataFrame({
            name: pd.Series(values, dtype=object) if name in kept else values
            for name, values in ordered.items()
        })  # fmt: skip
    kinds = {values.dtype for values in ordered.values()}
    dtype = kinds.pop() if len(kinds) == 1 else np.dtype(object)
    return np.stack([values.astype(dtype) for values in ordered.values()], axis=1)


def _texts(values: Array, *, none: bool) -> Array:
    missing = None if none else float("nan")
    array = np.empty(len(values), dtype=object)
    array[:] = [missing if value == SENTINEL else value for value in values]
    return array


def _with_missing(
    estimator: Any, prepared: Any, frame: Frame, accepted: Accepted, tolerance: float
) -> tuple[Frame, Accepted]:
    """Let a text be missing where the native model takes that **and** the graph agrees with it."""
    unclear = {c.name for c in frame.used if c.is_null_unclear}
    accepted = replace(accepted, missing=accepted.missing - unclear)
    texts = [c for c in frame.used if c.kind == "text" and c.name in accepted.missing]
    if not texts:
        return frame, accepted
    graph = _asked_graph(build_graph(prepared, frame, _order(estimator, frame)[0]), frame)
    native = _native(estimator, frame)
    wrong = {
        column.name
        for column in texts
        if not compare(
            graph, native, missing_rows(column, frame.used, frame.signature, accepted), tolerance
        ).is_within
    }
    accepted = replace(accepted, missing=accepted.missing - wrong)
    kept = {column.name for column in texts} - wrong
    if frame.is_matrix:
        kept = {MATRIX_INPUT} if len(kept) == len(frame.used) else set()
    inputs = tuple(
        replace(spec, missing=SENTINEL) if spec.name in kept else spec
        for spec in frame.signature.inputs
    )
    return replace(frame, signature=Signature(inputs, frame.signature.outputs)), accepted

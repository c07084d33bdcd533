"""XGBoost models: the trees as a graph with the link function, and UBJSON for the library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx

from models.convert.category_columns import add_columns, column_spec, rows_to_compare
from models.convert.choice import Candidate, NativeSide
from models.convert.graph import (
    Graph,
    InnerModel,
    NativeModel,
    add_flags,
    add_label,
    class_labels,
    classification_outputs,
    flagged,
    label_array,
    multilabel_outputs,
)
from models.convert.sample import Sample
from models.convert.trees import Floats, Forest, Precision, ensemble_node, library_versions
from models.convert.xgboost_json import XgboostModel, parse_model
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, edge_values
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.manifest import JsonObject

_IDENTITY: Final = frozenset(
    {"reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:pseudohubererror",
     "reg:absoluteerror", "reg:quantileerror", "reg:expectileerror", "rank:pairwise", "rank:ndcg",
     "rank:map", "binary:logitraw"}
)  # fmt: skip
_EXPONENTIAL: Final = frozenset(
    {"count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"}
)
_LOGISTIC: Final = frozenset({"binary:logistic", "reg:logistic"})
_MULTICLASS: Final = frozenset({"multi:softprob", "multi:softmax"})
# Of the numbers that weights are tried with.
_LARGEST_FACTOR: Final = 100.0
_OBJECTIVES: Final = _IDENTITY | _EXPONENTIAL | _LOGISTIC | _MULTICLASS | {"binary:hinge"}


@dataclass(frozen=True, slots=True)
class _Source:
    """A model with what only its scikit-learn wrapper knows.

    ``missing``: the number that stands for a missing one, beside NaN. ``is_multilabel``: a row may
    have several of the labels.
    """

    parsed: XgboostModel
    booster: Any
    labels: tuple[str | int, ...]
    missing: float | None
    is_multilabel: bool


def convert_file(data: bytes, sample: Sample | None) -> Candidate:
    """Return what an XGBoost model file, JSON or UBJSON, can be served as."""
    parse_model(data)  # first: the library's own reader can crash on a damaged file
    return _candidate(_source(_booster(data), None, None, None), sample)


def convert_object(model: Any, sample: Sample | None) -> Candidate:
    """Return what an unpickled Booster, XGBClassifier, Regressor or Ranker can be served as."""
    if not hasattr(model, "get_booster"):
        if not hasattr(model, "save_raw"):
            raise ConversionRefused(f"XGBoost: a {type(model).__name__} is no model")
        return _candidate(_source(model, None, None, None), sample)
    return _candidate(_source_of(model), sample)


def _source_of(model: Any) -> _Source:
    """Return an estimator of XGBoost's scikit-learn interface as a source."""
    if callable(getattr(model, "objective", None)):
        raise ConversionRefused(_unknown_objective("a Python function"))
    from sklearn.exceptions import NotFittedError

    try:
        booster = model.get_booster()
    except NotFittedError as error:
        raise ConversionRefused(f"XGBoost: {type(model).__name__} is not fitted") from error
    classes = getattr(model, "classes_", None)
    return _source(booster, classes, getattr(model, "missing", None), model)


def add_inner_model(graph: Graph, model: Any, matrix: str, precision: Precision) -> InnerModel:
    """Add an XGBoost estimator inside another model; ``matrix`` is what the steps before give."""
    source = _source_of(model)
    parsed = source.parsed
    if any(parsed.categories):
        raise ConversionRefused("XGBoost: categories inside another model are not supported")
    matrix = graph.add("Cast", matrix, to=onnx.TensorProto.FLOAT)  # as XGBoost reads it
    raw, targets = _add_margins(graph, source, matrix, precision), len(parsed.base)
    if source.labels:
        probabilities = _add_probabilities(graph, source, raw, "")
        return InnerModel(
            raw, targets, probabilities=probabilities, is_multilabel=source.is_multilabel
        )
    return InnerModel(raw, targets, prediction=_add_prediction(graph, source, raw, ""))


def _booster(data: bytes) -> Any:
    import xgboost

    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(data))
    except xgboost.core.XGBoostError as error:
        raise ConversionRefused(f"XGBoost refuses the model file: {_first_line(error)}") from error
    return booster


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or ["no reason given"])[0]
    _, mark, rest = line.partition(": ")
    return rest if mark and line.startswith("[") else line


def _candidate(source: _Source, sample: Sample | None) -> Candidate:
    parsed = source.parsed
    signature = Signature(_inputs(parsed), _outputs(source))

    def build(precision: Precision) -> onnx.ModelProto:
        graph = Graph()
        matrix = "input"
        if any(parsed.categories):
            matrix = add_columns(graph, signature.inputs)
        _add_outputs(graph, source, _add_margins(graph, source, matrix, precision))
        return graph.model(signature)

    answer = _native(source, signature)
    rows = _rows(source, signature, sample)
    libraries = library_versions("xgboost-cpu", "xgboost", "onnx", "onnxruntime", "numpy")
    version = libraries.get("xgboost-cpu") or libraries.get("xgboost")
    runtime: JsonObject = {"name": "native", "library": "xgboost", "version": version}
    if source.missing is not None:
        runtime["missing"] = source.missing
    side = None
    if parsed.linear is None:  # the library's call without a copy takes trees only
        model = NativeModel(bytes(source.booster.save_raw("ubj")), runtime, signature)
        side = NativeSide(model, rows, answer)
    return Candidate(signature, build, answer, rows, "xgboost", libraries, side)


def _source(booster: Any, classes: Any, missing: float | None, wrapper: Any) -> _Source:
    """Cut the model to the trees that its own predict takes, and check its objective."""
    parsed = parse_model(bytes(booster.save_raw("ubj")))
    if parsed.objective not in _OBJECTIVES:
        raise ConversionRefused(_unknown_objective(parsed.objective))
    best = parsed.attributes.get("best_iteration") if parsed.linear is None else None
    # Booster.predict takes all trees; what scikit-learn's wrapper trained takes the best ones.
    if best is not None and (wrapper is not None or "scikit_learn" in parsed.attributes):
        booster = booster[: int(best) + 1]
    if parsed.objective == "multi:softmax":
        booster = _with_probabilities(booster)
    booster.set_param({"nthread": 1})
    parsed = parse_model(bytes(booster.save_raw("ubj")))
    if missing is not None and math.isnan(missing):
        missing = None
    is_multilabel = (
        parsed.objective == "binary:logistic"
        and parsed.targets > 1
        and not _is_regressor(parsed, wrapper)
    )
    labels = tuple(range(parsed.targets)) if is_multilabel else _labels(parsed, classes, wrapper)
    return _Source(parsed, booster, labels, missing, is_multilabel)


def _with_probabilities(booster: Any) -> Any:
    """Return the model with multi:softprob: the same trees, whose labels are the highest ones."""
    document = json.loads(bytes(booster.save_raw("json")))
    document["learner"]["objective"]["name"] = "multi:softprob"
    return _booster(json.dumps(document).encode())


def _unknown_objective(name: str) -> str:
    return (
        f"XGBoost: objective {name} is not supported: its link function is not known here, "
        "and raw scores are not what the model predicts"
    )


def _labels(parsed: XgboostModel, classes: Any, wrapper: Any) -> tuple[str | int, ...]:
    """Return the class labels, or none for a regressor or ranker."""
    if parsed.objective in _MULTICLASS:
        count = parsed.classes
    elif parsed.objective == "binary:logistic" and not _is_regressor(parsed, wrapper):
        count = 2
    elif classes is not None:
        raise ConversionRefused(f"XGBoost: a classifier with objective {parsed.objective!r}")
    else:
        return ()
    labels = class_labels(classes if classes is not None else range(count))
    if len(labels) != count:
        raise ConversionRefused(f"XGBoost: {len(labels)} classes, the trees give {count}")
    return labels


def _is_regressor(parsed: XgboostModel, wrapper: Any) -> bool:
    if wrapper is not None:
        return not hasattr(wrapper, "predict_proba")
    return "regressor" in parsed.attributes.get("scikit_learn", "")


def _outputs(source: _Source) -> tuple[TensorSpec, ...]:
    if source.is_multilabel:
        return multilabel_outputs(source.labels)
    if source.labels:
        return classification_outputs(source.labels)
    targets = source.parsed.targets
    shape = (-1,) if targets == 1 else (-1, targets)
    return (TensorSpec("prediction", "FP32", shape, method="predict"),)


def _inputs(parsed: XgboostModel) -> tuple[TensorSpec, ...]:
    if not any(parsed.categories):
        return (TensorSpec("input", "FP32", (-1, parsed.width), columns=parsed.features),)
    names = parsed.features or tuple(f"f{i}" for i in range(parsed.width))
    return tuple(column_spec(*column) for column in zip(names, parsed.categories, strict=True))


def _add_margins(graph: Graph, source: _Source, matrix: str, precision: Precision) -> str:
    """Add trees or weights over the float32 ``matrix``; return the margins ``(rows, targets)``."""
    if source.parsed.linear is not None:
        return _add_weights(graph, source, source.parsed.linear, matrix, precision)
    if source.parsed.forest is None:
        raise ConversionRefused("trees with several numbers in a leaf have no graph")
    return _add_ensemble(graph, source, source.parsed.forest, matrix, precision)


def _add_weights(
    graph: Graph, source: _Source, weights: Floats, matrix: str, precision: Precision
) -> str:
    """Add a linear booster, to which what is missing adds nothing."""
    matrix = _with_missing(graph, source, matrix)
    zero = graph.constant(np.array(0, np.float32))
    matrix = graph.add("Where", graph.add("IsNaN", matrix), zero, matrix)
    dtype = np.float64 if precision == "float64" else np.float32
    if precision == "float64":
        matrix = graph.add("Cast", matrix, to=onnx.TensorProto.DOUBLE)
    # Its linear booster starts all targets from the first base score (GBLinear in gblinear.cc).
    start = weights[-1] + _base_margins(source)[0]
    product = graph.add("MatMul", matrix, graph.constant(weights[:-1].astype(dtype)))
    margins = graph.add("Add", product, graph.constant(start.astype(dtype)))
    return graph.add("Cast", margins, to=onnx.TensorProto.FLOAT)


def _base_margins(source: _Source) -> tuple[float, ...]:
    return tuple(_margin(source.parsed.objective, value) for value in source.parsed.base)


def _with_missing(graph: Graph, source: _Source, matrix: str) -> str:
    """Return the matrix with NaN where the number stands that the wrapper takes for missing."""
    if source.missing is None:
        return matrix
    stands_for = graph.constant(np.array(source.missing, np.float32))
    nan = graph.constant(np.array(np.nan, np.float32))
    return graph.add("Where", graph.add("Equal", matrix, stands_for), nan, matrix)


def _add_ensemble(
    graph: Graph, source: _Source, forest: Forest, matrix: str, precision: Precision
) -> str:
    matrix = _with_missing(graph, source, matrix)
    if any(source.parsed.coded):  # a code is cut to a whole number; below 0 it is in no set
        whole = graph.add("Floor", matrix)
        coded = graph.constant(np.array(source.parsed.coded))
        matrix = graph.add("Where", coded, whole, matrix)
    if precision == "float64":
        matrix = graph.add("Cast", matrix, to=onnx.TensorProto.DOUBLE)
    raw = graph.fresh("raw")
    forest = replace(forest, base=_base_margins(source))
    graph.nodes.append(ensemble_node(forest, precision, matrix, raw))
    return raw


def _margin(objective: str, base_score: float) -> float:
    """Return the start of the sum (``ProbToMargin`` of each objective), in float32 as there."""
    value = np.float32(base_score)
    if objective in _LOGISTIC:
        return float(-np.log(np.float32(1.0) / value - np.float32(1.0)))
    return float(np.log(value)) if objective in _EXPONENTIAL else float(value)


def _add_outputs(graph: Graph, source: _Source, raw: str) -> None:
    if not source.labels:
        _add_prediction(graph, source, raw, "prediction")
        return
    _add_probabilities(graph, source, raw, "probabilities")
    if source.is_multilabel:
        add_flags(graph, "probabilities", output="label")
        return
    add_label(graph, "probabilities", source.labels, output="label")


def _add_probabilities(graph: Graph, source: _Source, raw: str, output: str) -> str:
    if source.parsed.objective in _MULTICLASS:
        return graph.add("Softmax", raw, output=output, axis=1)
    if source.is_multilabel:
        return graph.add("Sigmoid", raw, output=output)
    positive = graph.add("Sigmoid", raw)
    # As the library: float32 complements, so that both sum to 1.
    negative = graph.add("Sub", graph.constant(np.array(1, np.float32)), positive)
    return graph.add("Concat", negative, positive, output=output, axis=1)


def _add_prediction(graph: Graph, source: _Source, raw: str, output: str) -> str:
    objective = source.parsed.objective
    if source.parsed.targets == 1:
        raw = graph.add("Reshape", raw, graph.constant(np.array([-1], np.int64)))
    if objective == "binary:hinge":
        is_positive = graph.add("Greater", raw, graph.constant(np.array(0, np.float32)))
        return graph.add("Cast", is_positive, output=output, to=onnx.TensorProto.FLOAT)
    links = dict.fromkeys(_EXPONENTIAL, "Exp") | dict.fromkeys(_LOGISTIC, "Sigmoid")
    return graph.add(links.get(objective, "Identity"), raw, output=output)


def _native(source: _Source, signature: Signature) -> Answer:
    """Return what XGBoost itself predicts for served inputs."""
    missing = np.nan if source.missing is None else source.missing

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        predicted = _predicted(source, _codes(signature.inputs, inputs), missing)
        if source.is_multilabel:
            return {"label": flagged(predicted), "probabilities": predicted}
        if not source.labels:
            return {"prediction": predicted}
        if predicted.ndim == 1:
            predicted = np.stack([1 - predicted, predicted], axis=1)
        label = label_array(source.labels)[predicted.argmax(axis=1)]
        return {"label": label, "probabilities": predicted}

    return answer


def _predicted(source: _Source, table: Array, missing: float) -> Array:
    if source.parsed.linear is None:
        return np.asarray(
            source.booster.inplace_predict(table, missing=missing, validate_features=False)
        )
    import xgboost

    data = xgboost.DMatrix(table, missing=missing, nthread=1)
    return np.asarray(source.booster.predict(data, validate_features=False))


def _codes(specs: Sequence[TensorSpec], inputs: Inputs) -> Array:
    """Return the matrix that XGBoost takes: each category as its code, NaN where it has none."""
    columns = []
    for spec in specs:
        values = inputs[spec.name]
        if spec.categories is not None:
            codes = {category: code for code, category in enumerate(spec.categories)}
            values = np.array([[codes.get(str(v), np.nan)] for v in values[:, 0]], np.float32)
        columns.append(values)
    return np.ascontiguousarray(np.concatenate(columns, axis=1), dtype=np.float32)


def _rows(source: _Source, signature: Signature, sample: Sample | None) -> Inputs:
    """Return the rows to compare on."""
    parsed = source.parsed
    thresholds = (
        parsed.forest.thresholds(parsed.width)
        if parsed.forest is not None
        else [np.linspace(-3, 3, 100)] * parsed.width
    )
    edges = [edge_values(t, is_nan_allowed=True, is_infinity_allowed=True) for t in thresholds]
    if parsed.linear is not None:
        # The library refuses infinity where it does not branch, and sums of numbers like 1e30
        # cancel: then its own float32 is no measure.
        edges = [values[~(np.abs(values) > _LARGEST_FACTOR)] for values in edges]
    if source.missing is not None:
        edges = [np.append(values, np.float32(source.missing)) for values in edges]
    return rows_to_compare(signature, edges, sample)

"""LightGBM models: the trees as a graph with the link function, and the text for the library."""

from __future__ import annotations

import warnings
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
    add_label,
    class_labels,
    classification_outputs,
    label_array,
)
from models.convert.lightgbm_text import ZERO, TextModel, parse_text_model
from models.convert.sample import Sample
from models.convert.trees import Precision, ensemble_node, library_versions
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, edge_values
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.manifest import JsonObject

_IDENTITY: Final = frozenset(
    {"regression", "regression_l2", "regression_l1", "l2", "l1", "huber", "fair", "quantile",
     "mape", "lambdarank", "rank_xendcg"}
)  # fmt: skip
_EXPONENTIAL: Final = frozenset({"poisson", "gamma", "tweedie"})


@dataclass(frozen=True, slots=True)
class _Column:
    """One feature as an input of its own; ``categories`` None for a plain number."""

    name: str
    categories: tuple[str, ...] | tuple[int, ...] | None


def convert_text(text: str, sample: Sample | None) -> Candidate:
    """Return what a model in LightGBM's text form can be served as."""
    return _candidate(text, None, sample)


def convert_object(model: Any, sample: Sample | None) -> Candidate:
    """Return what an unpickled Booster, LGBMClassifier, Regressor or Ranker can be served as."""
    text, classes = _text(model)
    return _candidate(text, classes, sample)


def add_inner_model(graph: Graph, model: Any, matrix: str, precision: Precision) -> InnerModel:
    """Add a LightGBM estimator inside another model; ``matrix`` is what the steps before give."""
    text, classes = _text(model)
    parsed = parse_text_model(text)
    if parsed.is_linear:
        raise ConversionRefused("LightGBM: linear trees (linear_tree=true) inside another model")
    is_classifier, _ = _classes(parsed, classes)
    if _columns(parsed) is not None:
        raise ConversionRefused("LightGBM: pandas categories inside a pipeline are not supported")
    raw = _add_ensemble(graph, parsed, matrix, precision)
    if is_classifier:
        targets = parsed.forest.target_count
        probabilities = _add_probabilities(graph, parsed, raw, "")
        return InnerModel(raw, targets, probabilities=probabilities)
    return InnerModel(raw, 1, prediction=_add_prediction(graph, parsed, raw, ""))


def _text(model: Any) -> tuple[str, Any]:
    """Return the text and the classes, with the trees that native prediction takes: the best."""
    try:
        if not hasattr(type(model), "booster_"):
            return str(model.model_to_string()), None
        if callable(model.objective):
            raise ConversionRefused(_custom_objective("a Python function"))
        return str(model.booster_.model_to_string()), getattr(model, "classes_", None)
    except ValueError as error:  # LGBMNotFittedError is one
        raise ConversionRefused(f"LightGBM: {type(model).__name__} is not fitted") from error


def _booster(text: str) -> Any:
    import lightgbm

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return lightgbm.Booster(model_str=text, params={"verbosity": -1})
    # It reads its categories, which are JSON, by Python's own reader.
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        raise ConversionRefused(f"LightGBM refuses its own model: {error}") from error


def _candidate(text: str, classes: Any, sample: Sample | None) -> Candidate:
    parsed = parse_text_model(text)
    booster = _booster(text)
    is_classifier, labels = _classes(parsed, classes)
    columns = _columns(parsed)
    outputs = (
        classification_outputs(labels)
        if is_classifier
        else (TensorSpec("prediction", "FP32", (-1,), method="predict"),)
    )
    signature = Signature(_inputs(parsed, columns), outputs)

    def build(precision: Precision) -> onnx.ModelProto:
        if parsed.is_linear:
            raise ConversionRefused("linear trees have no graph")
        graph = Graph()
        matrix = "input"
        if columns is not None:
            matrix = add_columns(graph, signature.inputs)
        raw = _add_ensemble(graph, parsed, matrix, precision)
        _add_outputs(graph, parsed, raw, labels)
        return graph.model(signature)

    answer = _native(booster, columns, signature, labels if is_classifier else None)
    libraries = library_versions("lightgbm", "onnx", "onnxruntime", "numpy")
    doubles = _in_doubles(signature)
    runtime: JsonObject = {
        "name": "native", "library": "lightgbm", "version": libraries["lightgbm"],
    }  # fmt: skip
    return Candidate(
        signature,
        build,
        answer,
        _rows(parsed, signature, sample),
        "lightgbm",
        libraries,
        NativeSide(
            NativeModel(text.encode(), runtime, doubles),
            _rows(parsed, doubles, sample),
            answer,
        ),
    )


def _in_doubles(signature: Signature) -> Signature:
    """Return the signature of the library itself, which computes in double from end to end."""
    inputs, outputs = (
        tuple(replace(s, datatype="FP64") if s.datatype == "FP32" else s for s in specs)
        for specs in (signature.inputs, signature.outputs)
    )
    return Signature(inputs, outputs)


def _classes(parsed: TextModel, classes: Any) -> tuple[bool, tuple[str | int, ...]]:
    """Check the objective; return whether it gives classes, and their labels."""
    name = parsed.objective[0] if parsed.objective else ""
    targets = parsed.forest.target_count
    known = _IDENTITY | _EXPONENTIAL | {
        "binary", "multiclass", "multiclassova", "cross_entropy", "cross_entropy_lambda",
    }  # fmt: skip
    if name not in known:
        raise ConversionRefused(_custom_objective(name or "none in the model text"))
    is_multiclass = name in ("multiclass", "multiclassova")
    if (targets > 1) is not is_multiclass:
        raise ConversionRefused(f"LightGBM: objective {name!r} with {targets} trees an iteration")
    if not is_multiclass and name != "binary":
        if classes is not None:
            raise ConversionRefused(f"LightGBM: a classifier with objective {name!r}")
        return False, ()
    count = targets if is_multiclass else 2
    labels = class_labels(classes if classes is not None else range(count))
    if len(labels) != count:
        raise ConversionRefused(f"LightGBM: {len(labels)} classes, the trees give {count}")
    return True, labels


def _custom_objective(name: str) -> str:
    return (
        f"LightGBM: objective {name} is not supported: its link function is not known here, "
        "and raw scores are not what the model predicts"
    )


def _columns(parsed: TextModel) -> tuple[_Column, ...] | None:
    """Return the features as inputs of their own where pandas categories are among them."""
    if not parsed.pandas_categories:
        return None
    coded = [i for i, info in enumerate(parsed.infos) if not info.startswith("[")]
    if len(coded) != len(parsed.pandas_categories):
        coded = [i for i in coded if parsed.infos[i] != "none"]
    if len(coded) != len(parsed.pandas_categories):
        names = ", ".join(parsed.features[i] for i in coded) or "none"
        raise ConversionRefused(
            f"LightGBM: {len(parsed.pandas_categories)} pandas columns of dtype category, but the "
            f"model says categorical of these features: {names}. Drop constant category columns, "
            "and do not mix dtype category with categorical_feature"
        )
    categories = dict(zip(coded, parsed.pandas_categories, strict=True))
    return tuple(
        _Column(name, _category_values(name, categories.get(i)))
        for i, name in enumerate(parsed.features)
    )


def _category_values(
    name: str, values: tuple[object, ...] | None
) -> tuple[str, ...] | tuple[int, ...] | None:
    if values is None:
        return None
    if not values:
        raise ConversionRefused(f"LightGBM: feature {name!r} has no categories: drop it")
    texts = tuple(value for value in values if isinstance(value, str))
    numbers = tuple(value for value in values if type(value) is int)
    if len(texts) == len(values):
        return texts
    if len(numbers) == len(values):
        return numbers
    raise ConversionRefused(
        f"LightGBM: the categories of feature {name!r} must be all text or all whole numbers"
    )


def _inputs(parsed: TextModel, columns: Sequence[_Column] | None) -> tuple[TensorSpec, ...]:
    if columns is None:
        automatic = tuple(f"Column_{i}" for i in range(len(parsed.features)))
        names = None if parsed.features == automatic else parsed.features
        return (TensorSpec("input", "FP32", (-1, len(parsed.features)), columns=names),)
    return tuple(column_spec(column.name, column.categories) for column in columns)


def _add_ensemble(graph: Graph, parsed: TextModel, matrix: str, precision: Precision) -> str:
    """Add the trees over ``matrix``, whatever its type, and return the raw scores."""
    dtype = np.float32 if precision == "float32" else np.float64
    element = onnx.TensorProto.FLOAT if precision == "float32" else onnx.TensorProto.DOUBLE
    matrix = graph.add("Cast", matrix, to=element)
    size = graph.add("Abs", matrix) if any(parsed.zero_is_missing) or any(parsed.coded) else ""
    if any(parsed.zero_is_missing):
        is_tiny = graph.add(
            "Not", graph.add("Greater", size, graph.constant(np.array(ZERO, dtype)))
        )
        flagged = graph.constant(np.array(parsed.zero_is_missing))
        is_missing = graph.add("And", is_tiny, flagged)
        nan = graph.constant(np.array(np.nan, dtype))
        matrix = graph.add("Where", is_missing, nan, matrix)
    if any(parsed.coded):  # LightGBM cuts a code to a whole number
        whole = graph.add("Mul", graph.add("Sign", matrix), graph.add("Floor", size))
        matrix = graph.add("Where", graph.constant(np.array(parsed.coded)), whole, matrix)
    raw = graph.fresh("raw")
    graph.nodes.append(ensemble_node(parsed.forest, precision, matrix, raw))
    return raw


def _add_outputs(graph: Graph, parsed: TextModel, raw: str, labels: Sequence[str | int]) -> None:
    if not labels:
        _add_prediction(graph, parsed, raw, "prediction")
        return
    _add_probabilities(graph, parsed, raw, "probabilities")
    add_label(graph, "probabilities", labels, output="label")


def _add_probabilities(graph: Graph, parsed: TextModel, raw: str, output: str) -> str:
    name = parsed.objective[0]
    if name == "multiclass":
        return graph.add("Softmax", raw, output=output, axis=1)
    scaled = raw
    if (sigmoid := _sigmoid(parsed)) != 1.0:
        scaled = graph.add("Mul", raw, graph.constant(np.array(sigmoid, np.float32)))
    if name == "multiclassova":
        return graph.add("Sigmoid", scaled, output=output)
    # Both from the margin: 1 - p would lose the small one to rounding.
    positive = graph.add("Sigmoid", scaled)
    negative = graph.add("Sigmoid", graph.add("Neg", scaled))
    return graph.add("Concat", negative, positive, output=output, axis=1)


def _add_prediction(graph: Graph, parsed: TextModel, raw: str, output: str) -> str:
    name = parsed.objective[0]
    flat = graph.add("Reshape", raw, graph.constant(np.array([-1], np.int64)))
    if "sqrt" in parsed.objective and name not in _EXPONENTIAL:
        return graph.add("Mul", flat, graph.add("Abs", flat), output=output)
    links = dict.fromkeys(_EXPONENTIAL, "Exp") | {
        "cross_entropy": "Sigmoid", "cross_entropy_lambda": "Softplus",
    }  # fmt: skip
    return graph.add(links.get(name, "Identity"), flat, output=output)


def _sigmoid(parsed: TextModel) -> float:
    for token in parsed.objective[1:]:
        name, _, value = token.partition(":")
        if name == "sigmoid":
            try:
                return float(value)
            except ValueError as error:
                raise ConversionRefused(f"LightGBM: objective option {token!r}") from error
    return 1.0


def _native(
    booster: Any, columns: Sequence[_Column] | None, signature: Signature,
    labels: Sequence[str | int] | None,
) -> Answer:  # fmt: skip
    """Return what LightGBM itself predicts for served inputs."""

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        data = inputs["input"] if columns is None else _frame(columns, signature, inputs)
        predicted = np.asarray(booster.predict(data, num_threads=1))
        if labels is None:
            return {"prediction": predicted}
        if predicted.ndim == 1:
            predicted = np.stack([1.0 - predicted, predicted], axis=1)
        return {
            "label": label_array(labels)[predicted.argmax(axis=1)],
            "probabilities": predicted,
        }

    return answer


def _frame(columns: Sequence[_Column], signature: Signature, inputs: Inputs) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ConversionRefused(
            "LightGBM: a model with pandas categories needs pandas to be checked: "
            "type `pip install 'ramrack[sklearn]'`"
        ) from error
    frame = {}
    for column, spec in zip(columns, signature.inputs, strict=True):
        values = inputs[column.name][:, 0]
        if column.categories is not None:
            known = set(column.categories)
            values = pd.Categorical(
                [value if value in known else None for value in values.tolist()],
                categories=list(column.categories),
            )
        frame[spec.name] = values
    return pd.DataFrame(frame)


def _rows(parsed: TextModel, signature: Signature, sample: Sample | None) -> Inputs:
    """Return the rows to compare on."""
    is_double = any(spec.datatype == "FP64" for spec in signature.inputs)
    edges = [
        edge_values(values, is_nan_allowed=True, is_infinity_allowed=True,
                    dtype=np.float64 if is_double else np.float32)
        for values in parsed.forest.thresholds(len(parsed.features))
    ]  # fmt: skip
    return rows_to_compare(signature, edges, sample)

"""CatBoost models: trees over numbers as a graph, and the binary model for the library.

Models with category or text features are served by the library: their splits are by statistics
of the training rows, kept in the model under hashes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from models.convert.catboost_json import parse_json_dump
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
from models.convert.trees import Forest, Precision, ensemble_node, library_versions
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, edge_matrix, edge_values
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.manifest import JsonObject

_BINARY: Final = frozenset({"Logloss", "CrossEntropy", "Focal"})
_MULTILABEL: Final = frozenset({"MultiLogloss", "MultiCrossEntropy"})
_MULTICLASS: Final = frozenset({"MultiClass", "MultiClassOneVsAll"})
_EXPONENTIAL: Final = frozenset({"Poisson", "Tweedie"})
_UNCERTAINTY: Final = "RMSEWithUncertainty"
_IDENTITY: Final = frozenset(
    {"RMSE", "MAE", "Quantile", "LogLinQuantile", "MultiQuantile", "MultiRMSE",
     "MultiRMSEWithMissingValues", "GroupQuantile", "RMSPE", "LogCosh", "Lq", "Huber",
     "Expectile", "MAPE", "Cox", "SurvivalAft", "PairLogit", "PairLogitPairwise",
     "YetiRank", "YetiRankPairwise", "QueryRMSE", "QuerySoftMax", "QueryCrossEntropy",
     "StochasticRank", "LambdaMart"}
)  # fmt: skip
_LOSSES: Final = _BINARY | _MULTICLASS | _MULTILABEL | _EXPONENTIAL | _IDENTITY | {_UNCERTAINTY}
_SEED: Final = 20_240_131
_MADE_ROWS: Final = 2_000
_UNSEEN: Final = ("a value that no training row had", "another one", "0", "1")


@dataclass(frozen=True, slots=True)
class _Source:
    """A model and what it is. ``texts``: flat features that are categories or texts.

    ``sentences``: those of them that are texts, of several words.
    """

    model: Any
    loss: str
    features: tuple[str, ...]
    texts: frozenset[int]
    sentences: frozenset[int]
    labels: tuple[str | int, ...]

    @property
    def is_multilabel(self) -> bool:
        """Whether a row may have several of the labels."""
        return self.loss in _MULTILABEL

    @property
    def prediction_type(self) -> str:
        """What its own ``predict`` (or ``predict_proba``) returns."""
        if self.labels:
            return "Probability"
        if self.loss == _UNCERTAINTY:
            return self.loss
        return "Exponent" if self.loss in _EXPONENTIAL else "RawFormulaVal"


def convert_file(path: Path, sample: Sample | None) -> Candidate:
    """Return what a CatBoost binary model can be served as."""
    import catboost

    model = catboost.CatBoost()
    try:
        # From the file: from memory, one that is cut off near its end is read past that end.
        model.load_model(str(path), format="cbm")
    except (catboost.CatBoostError, ValueError) as error:
        raise ConversionRefused(f"CatBoost refuses the model file: {_last_part(error)}") from error
    return _candidate(model, sample)


def convert_object(model: Any, sample: Sample | None) -> Candidate:
    """Return what an unpickled CatBoost, Classifier, Regressor or Ranker can be served as."""
    if model.is_fitted() and (texts := model.get_text_feature_indices()):
        # 1.2.10 crashes when it opens what a model that was unpickled saves.
        raise ConversionRefused(
            f"CatBoost: feature {str(model.feature_names_[texts[0]])!r} is a text, which a pickle "
            "does not keep whole: save the model with model.save_model('model.cbm'), push that"
        )
    return _candidate(model, sample)


def _candidate(model: Any, sample: Sample | None) -> Candidate:
    source = _source(model)
    signature = Signature(_inputs(source), _outputs(source))
    forest, reason = _forest(source)

    def build(precision: Precision) -> onnx.ModelProto:
        if forest is None:
            raise ConversionRefused(reason)
        graph = Graph()
        _add_outputs(graph, source, _add_trees(graph, forest, "input", precision))
        return graph.model(signature)

    answer = _native(source, signature)
    rows = _rows(source, signature, forest, sample)
    libraries = library_versions("catboost", "onnx", "onnxruntime", "numpy")
    runtime: JsonObject = {
        "name": "native", "library": "catboost", "version": libraries["catboost"],
        "prediction_type": source.prediction_type,
    }  # fmt: skip
    side = NativeSide(NativeModel(_blob(model), runtime, signature), rows, answer)
    return Candidate(signature, build, answer, rows, "catboost", libraries, side)


def add_inner_model(graph: Graph, model: Any, matrix: str, precision: Precision) -> InnerModel:
    """Add a CatBoost estimator inside another model; ``matrix`` is what the steps before give."""
    source = _source(model)
    forest, reason = _forest(source)
    if forest is None:
        raise ConversionRefused(f"CatBoost: {reason}")
    matrix = graph.add("Cast", matrix, to=onnx.TensorProto.FLOAT)  # as CatBoost reads it
    raw, targets = _add_trees(graph, forest, matrix, precision), forest.target_count
    if source.labels:
        probabilities = _add_probabilities(graph, source, raw, "")
        return InnerModel(
            raw, targets, probabilities=probabilities, is_multilabel=source.is_multilabel
        )
    return InnerModel(raw, targets, prediction=_add_prediction(graph, source, raw, ""))


def _add_trees(graph: Graph, forest: Forest, matrix: str, precision: Precision) -> str:
    """Add the trees over the float32 ``matrix`` and return the sums ``(rows, targets)``."""
    if precision == "float64":
        matrix = graph.add("Cast", matrix, to=onnx.TensorProto.DOUBLE)
    raw = graph.fresh("raw")
    graph.nodes.append(ensemble_node(forest, precision, matrix, raw))
    return raw


def _source(model: Any) -> _Source:
    if not model.is_fitted():
        raise ConversionRefused(f"CatBoost: {type(model).__name__} is not fitted")
    loss = str(_parameters(model).get("loss_function", "none")).partition(":")[0]
    if loss not in _LOSSES:
        raise ConversionRefused(
            f"CatBoost: loss function {loss} is not supported: what the model predicts with it "
            "is not known here"
        )
    names = tuple(str(name) for name in model.feature_names_)
    if embeddings := model.get_embedding_feature_indices():
        raise ConversionRefused(
            f"CatBoost: feature {names[embeddings[0]]!r} is an embedding, which is not supported"
        )
    sentences = frozenset(model.get_text_feature_indices())
    texts = sentences | frozenset(model.get_cat_feature_indices())
    return _Source(model, loss, names, texts, sentences, _labels(model, loss))


def _parameters(model: Any) -> Mapping[str, Any]:
    import catboost

    try:
        parameters: Mapping[str, Any] = model.get_all_params()
    except (catboost.CatBoostError, ValueError) as error:
        raise ConversionRefused(
            f"CatBoost cannot read the parameters in the model, it may be damaged: "
            f"{_last_part(error)}"
        ) from error
    return parameters


def _labels(model: Any, loss: str) -> tuple[str | int, ...]:
    if loss in _MULTILABEL:
        return class_labels(list(model.classes_))
    if loss not in _BINARY | _MULTICLASS:
        return ()
    threshold = float(model.get_metadata().get("binclass_probability_threshold", 0.5))
    if loss in _BINARY and threshold != 0.5:
        raise ConversionRefused(
            f"CatBoost: a probability threshold of {threshold} is not supported: labels are the "
            "most probable class"
        )
    classes = list(model.classes_)
    return class_labels(classes or (0, 1))


def _inputs(source: _Source) -> tuple[TensorSpec, ...]:
    width = len(source.features)
    if not source.texts:
        automatic = tuple(str(i) for i in range(width))
        names = None if source.features == automatic else source.features
        return (TensorSpec("input", "FP32", (-1, width), columns=names),)
    return tuple(
        TensorSpec(
            name, "BYTES" if i in source.texts else "FP32", (-1, 1),
            integers=i in source.texts and i not in source.sentences,
        )
        for i, name in enumerate(source.features)
    )  # fmt: skip


def _outputs(source: _Source) -> tuple[TensorSpec, ...]:
    if source.is_multilabel:
        return multilabel_outputs(source.labels)
    if source.labels:
        return classification_outputs(source.labels)
    probe = np.zeros((1, len(source.features)), np.float32)
    table = probe.astype(object) if source.texts else probe
    for index in source.texts:
        table[:, index] = _UNSEEN[0]
    shape = np.shape(_predict(source, table))
    return (TensorSpec("prediction", "FP32", (-1, *shape[1:]), method="predict"),)


def _forest(source: _Source) -> tuple[Forest | None, str]:
    """Return the trees, or None and why there is no graph of them."""
    if source.texts:
        name = source.features[min(source.texts)]
        return None, f"feature {name!r} is no number, which its trees look up in statistics"
    if source.loss == _UNCERTAINTY:
        return None, f"loss function {source.loss} has no graph"
    try:
        dump = json.loads(_saved(source.model, "json"))
    except ValueError as error:  # not UTF-8, or no JSON
        raise ConversionRefused(
            f"CatBoost cannot write the model as JSON, it may be damaged: {error}"
        ) from error
    try:
        return parse_json_dump(dump), ""
    except ConversionRefused as error:
        return None, str(error)


def _blob(model: Any) -> bytes:
    return _saved(model, "cbm")


def _saved(model: Any, form: str) -> bytes:
    # The library writes to paths only.
    with tempfile.TemporaryDirectory(prefix="ramrack-") as folder:
        path = Path(folder) / f"model.{form}"
        model.save_model(str(path), format=form)
        return path.read_bytes()


def _add_outputs(graph: Graph, source: _Source, raw: str) -> None:
    if source.labels:
        _add_probabilities(graph, source, raw, "probabilities")
        if source.is_multilabel:
            add_flags(graph, "probabilities", output="label")
        else:
            add_label(graph, "probabilities", source.labels, output="label")
        return
    (spec,) = _outputs(source)
    if len(spec.shape) == 1:
        raw = graph.add("Reshape", raw, graph.constant(np.array([-1], np.int64)))
    _add_prediction(graph, source, raw, "prediction")


def _add_probabilities(graph: Graph, source: _Source, raw: str, output: str) -> str:
    if source.loss == "MultiClass":
        return graph.add("Softmax", raw, output=output, axis=1)
    if source.loss == "MultiClassOneVsAll" or source.is_multilabel:
        return graph.add("Sigmoid", raw, output=output)
    # Both from the margin: 1 - p would lose the small one to rounding.
    positive = graph.add("Sigmoid", raw)
    negative = graph.add("Sigmoid", graph.add("Neg", raw))
    return graph.add("Concat", negative, positive, output=output, axis=1)


def _add_prediction(graph: Graph, source: _Source, raw: str, output: str) -> str:
    link = "Exp" if source.loss in _EXPONENTIAL else "Identity"
    return graph.add(link, raw, output=output)


def _predict(source: _Source, table: Array) -> Array:
    import catboost

    # The base class: those of scikit-learn's manner turn labels and shapes around.
    try:
        predicted = catboost.CatBoost.predict(
            source.model, table, prediction_type=source.prediction_type, thread_count=1
        )
    except catboost.CatBoostError as error:
        raise ConversionRefused(f"CatBoost refuses the sample: {_last_part(error)}") from error
    return np.asarray(predicted, dtype=np.float64)


def _native(source: _Source, signature: Signature) -> Answer:
    """Return what CatBoost itself predicts for served inputs."""

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        columns: Sequence[Array] = [inputs[spec.name] for spec in signature.inputs]
        table = columns[0]
        if source.texts:
            table = np.concatenate([column.astype(object) for column in columns], axis=1)
        predicted = _predict(source, table)
        if source.is_multilabel:
            return {"label": flagged(predicted), "probabilities": predicted}
        if not source.labels:
            return {"prediction": predicted}
        label = label_array(source.labels)[predicted.argmax(axis=1)]
        return {"label": label, "probabilities": predicted}

    return answer


def _rows(
    source: _Source, signature: Signature, forest: Forest | None, sample: Sample | None
) -> Inputs:
    """Return the rows to compare on: the sample, and every border with its neighbours."""
    rng = np.random.default_rng(_SEED)
    given = sample.inputs(signature) if sample is not None else None
    width = len(source.features)
    borders = _borders(source.model, width) if forest is None else forest.thresholds(width)
    edges = [edge_values(b, is_nan_allowed=True, is_infinity_allowed=True) for b in borders]
    base = given["input"] if given is not None and not source.texts else None
    made = edge_matrix(edges, base, rng, max_rows=_MADE_ROWS if source.texts else 20_000)
    if not source.texts:
        return {"input": made if base is None else np.concatenate([base, made])}
    rows: Inputs = {}
    for index, spec in enumerate(signature.inputs):
        values = made[:, index : index + 1]
        if index in source.texts:
            known = [] if given is None else list(dict.fromkeys(given[spec.name][:, 0].tolist()))
            texts = [*known, *_UNSEEN]
            drawn = [[texts[i]] for i in rng.integers(0, len(texts), size=len(made))]
            values = np.array(drawn, dtype=object)
        rows[spec.name] = values if given is None else np.concatenate([given[spec.name], values])
    return rows


def _borders(model: Any, width: int) -> list[Array]:
    found = model.get_borders()
    return [np.array(found.get(i, []), dtype=np.float64) for i in range(width)]


def _last_part(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    place, mark, rest = text.partition(": ")
    return rest if mark and ".cpp" in place else text

"""What needs no model of its own: centres, constants, and wrappers that only pass on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from onnx import TensorProto

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.errors import ConversionRefused
from models.servable import Array


def _pipeline(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    steps = [(name, step) for name, step in estimator.steps if step not in (None, "passthrough")]
    for _, step in steps[:-1]:
        if type(step).__name__ == "Pipeline" and hasattr(step, "predict"):
            raise ConversionRefused("a pipeline that predicts in the middle of a pipeline")
    if len(steps) > 1:
        source = compiler.transformed(estimator[: len(estimator.steps) - 1], source)
        source = replace(source, width=int(getattr(steps[-1][1], "n_features_in_", -1)))
    return compiler.predict(steps[-1][1], source)


def _best_estimator(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return compiler.predict(estimator.best_estimator_, source)


def _frozen(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return compiler.predict(estimator.estimator, source)


def _self_trained(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return compiler.predict(estimator.estimator_, source)


def _selected(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    kept = np.flatnonzero(estimator.support_).tolist()
    return compiler.predict(estimator.estimator_, compiler.columns(source, kept))


def _nearest_centre(centres: Array, labels: Array | None = None) -> Handler:
    def write(compiler: Compiler, _estimator: Any, source: Source) -> Predicted:
        matrix = compiler.matrix(source)
        product = compiler.add("MatMul", matrix, compiler.number(-2.0 * centres.T))
        squares = compiler.number((centres**2).sum(axis=1)[None, :])
        distance = compiler.add("Add", product, squares)
        place = compiler.add("ArgMin", distance, axis=1, keepdims=0)
        if labels is not None:
            place = compiler.add("Gather", compiler.whole(labels), place, axis=0)
        return Predicted(label=place)

    return write


def _centres(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    centres = np.asarray(estimator.cluster_centers_, np.float64)
    return _nearest_centre(centres)(compiler, estimator, source)


def _birch(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    centres = np.asarray(estimator.subcluster_centers_, np.float64)
    write = _nearest_centre(centres, np.asarray(estimator.subcluster_labels_))
    return write(compiler, estimator, source)


def _repeated(compiler: Compiler, source: Source, row: Array) -> str:
    """Return a constant row ``(1, n)`` once for each row of the table."""
    table = source.tensors[0] if source.sparse is None else source.sparse.places
    rows = compiler.add("Shape", table, start=0, end=1)
    shape = compiler.add("Concat", rows, compiler.whole([row.shape[1]]), axis=0)
    return compiler.add("Expand", compiler.number(row), shape)


def _dummy_classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    if estimator.strategy not in ("prior", "most_frequent", "constant"):
        raise ConversionRefused(
            f"DummyClassifier: strategy {estimator.strategy!r} answers by chance: no two answers "
            "would be the same"
        )
    row = np.zeros((1, len(estimator.classes_)))
    if estimator.strategy == "constant":
        place = int(np.flatnonzero(estimator.classes_ == estimator.constant)[0])
    else:
        place = int(np.argmax(estimator.class_prior_))
    row[0, place] = 1.0
    if estimator.strategy == "prior":
        row[0] = estimator.class_prior_
    probabilities = _repeated(compiler, source, row)
    zero = compiler.add("Mul", compiler.best(probabilities), compiler.whole(0))
    return Predicted(compiler.add("Add", zero, compiler.whole(place)), probabilities=probabilities)


def _dummy_regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    row = np.asarray(estimator.constant_, np.float64).reshape(1, -1)
    return Predicted(values=_repeated(compiler, source, row))


def _mixture(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    label, probabilities = compiler.piece(estimator, source)[:2]
    whole = compiler.add("Cast", compiler.shaped(label, -1), to=TensorProto.INT64)
    return Predicted(label=whole, probabilities=compiler.cast(probabilities))


def _refused(_compiler: Compiler, estimator: Any, _source: Source) -> Predicted:
    raise ConversionRefused(
        f"scikit-learn: {type(estimator).__name__} is not supported: how many training rows "
        "answer differs from row to row"
    )


def _refused_process(_compiler: Compiler, _estimator: Any, _source: Source) -> Predicted:
    raise ConversionRefused(
        "scikit-learn: GaussianProcessClassifier is not supported: each answer solves a system of "
        "equations, for which the runtime has no operator"
    )


HANDLERS: Final[dict[str, Handler]] = {
    "Pipeline": _pipeline,
    "GaussianProcessClassifier": _refused_process,
    "SelfTrainingClassifier": _self_trained,
    **dict.fromkeys(
        ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"),
        _best_estimator,
    ),
    "FrozenEstimator": _frozen,
    **dict.fromkeys(("RadiusNeighborsClassifier", "RadiusNeighborsRegressor"), _refused),
    **dict.fromkeys(("RFE", "RFECV"), _selected),
    **dict.fromkeys(("KMeans", "MiniBatchKMeans", "MeanShift", "AffinityPropagation"), _centres),
    "Birch": _birch,
    "DummyClassifier": _dummy_classifier,
    "DummyRegressor": _dummy_regressor,
    **dict.fromkeys(("GaussianMixture", "BayesianGaussianMixture"), _mixture),
}

"""Outlier detectors: the label is 1 or -1, the scores are decision_function."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.convert.predictors.kernels import signs
from models.convert.sklearn_trees import isolation_forest
from models.convert.trees import ensemble_node


def _isolation_forest(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    forest, length = isolation_forest(estimator)
    matrix = compiler.matrix(source)
    # The native model casts its rows to float32 first.
    matrix = compiler.cast(compiler.add("Cast", matrix, to=TensorProto.FLOAT))
    raw = compiler.graph.fresh("raw")
    compiler.graph.nodes.append(ensemble_node(forest, compiler.precision, matrix, raw))
    # 2 ** (-depth / length), where a length of 0 (one training row) stands for a depth of one.
    ratio = compiler.add("Mul", compiler.cast(raw), compiler.number(-1.0 / length if length else 0))
    if not length:
        ratio = compiler.add("Sub", ratio, compiler.number(1.0))
    power = compiler.add("Exp", compiler.add("Mul", ratio, compiler.number(np.log(2.0))))
    scores = compiler.add("Sub", compiler.number(-estimator.offset_), power)
    flag = compiler.is_positive(scores, or_zero=True)
    return Predicted(label=signs(compiler, flag), scores=scores)


def _sgd(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    scores = compiler.affine(compiler.matrix(source), estimator.coef_, -estimator.offset_)
    flag = compiler.is_positive(scores, or_zero=True)
    return Predicted(label=signs(compiler, flag), scores=scores)


def _envelope(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    centred = compiler.add("Sub", compiler.matrix(source), compiler.number(estimator.location_))
    turned = compiler.add("MatMul", centred, compiler.number(estimator.get_precision()))
    squares = compiler.summed(compiler.add("Mul", turned, centred))
    scores = compiler.add("Sub", compiler.number(-estimator.offset_), squares)
    flag = compiler.is_positive(scores, or_zero=True)
    return Predicted(label=signs(compiler, flag), scores=scores)


HANDLERS: Final[dict[str, Handler]] = {
    "IsolationForest": _isolation_forest,
    "SGDOneClassSVM": _sgd,
    "EllipticEnvelope": _envelope,
}

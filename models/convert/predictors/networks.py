"""Networks of scikit-learn where skl2onnx has none: classifiers of several labels a row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.predictors.compiler import (
    Compiler,
    Handler,
    Predicted,
    Source,
    written_by_piece,
)
from models.errors import ConversionRefused

_ACTIVATIONS: Final = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid", "identity": ""}


def _classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    if not estimator._label_binarizer.y_type_.startswith("multilabel"):  # noqa: SLF001
        return written_by_piece(compiler, estimator, source)
    if estimator.out_activation_ != "logistic":
        raise ConversionRefused(
            f"MLPClassifier: {estimator.out_activation_!r} as the last activation of several labels"
        )
    probabilities = compiler.add("Sigmoid", _layers(compiler, estimator, source))
    return Predicted(index=compiler.flags(probabilities, 0.5), probabilities=probabilities)


def _layers(compiler: Compiler, estimator: Any, source: Source) -> str:
    """Return what the last layer gives, before its activation."""
    tensor = compiler.matrix(source)
    last = len(estimator.coefs_) - 1
    for place, (weights, bias) in enumerate(
        zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ):
        tensor = compiler.affine(tensor, np.asarray(weights).T, bias)
        kind = _ACTIVATIONS[estimator.activation]
        if place != last and kind:
            tensor = compiler.add(kind, tensor)
    return tensor


HANDLERS: Final[dict[str, Handler]] = {"MLPClassifier": _classifier}

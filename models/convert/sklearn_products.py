"""Transformers of scikit-learn that skl2onnx lacks and that are a product with a matrix."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.sklearn_writer import Writer
from models.errors import ConversionRefused
from models.servable import Array

# What they compute loses digits where the columns are large.
_IN_DOUBLE: Final = ("Nystroem", "RBFSampler")


def convert_product(scope: Any, operator: Any, container: Any) -> None:
    """Write a projection or a feature map, called by skl2onnx."""
    model = operator.raw_operator
    write = Writer(scope, container, operator)
    matrix = write.numbers()
    name = type(model).__name__
    if name == "Nystroem" and (model.kernel != "rbf" or model.kernel_params):
        raise ConversionRefused(f"Nystroem: kernel {model.kernel!r} is not supported: use rbf")
    if name in _IN_DOUBLE and not write.is_double:
        raise ConversionRefused(f"{name}: distances and angles are computed in double only")
    if name == "Nystroem":
        write.result(_nystroem(write, model, matrix))
        return
    center, weights, scale = _parts(model)
    if center is not None:
        matrix = write.add("Sub", matrix, write.number(center[None, :]))
    result = write.add("MatMul", matrix, write.number(weights))
    if name == "RBFSampler":
        shifted = write.add("Add", result, write.number(model.random_offset_[None, :]))
        result = write.add("Mul", write.add("Cos", shifted), write.number(scale))
    write.result(result)


def shape_of_product(operator: Any) -> None:
    """Tell skl2onnx how many columns come out."""
    model = operator.raw_operator
    if type(model).__name__ == "Nystroem":
        width = len(model.components_)
    else:
        width = _parts(model)[1].shape[1]
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    operator.outputs[0].type = (DoubleTensorType if is_double else FloatTensorType)([None, width])


def _parts(model: Any) -> tuple[Array | None, Array, float]:
    """Return what is taken from a row, what it is multiplied with, and the scale of what follows.

    Sources: ``transform`` of each class.
    """
    name = type(model).__name__
    if name == "FastICA":
        return getattr(model, "mean_", None), np.asarray(model.components_).T, 1.0
    if name == "FactorAnalysis":
        weighted = model.components_ / model.noise_variance_
        inner = np.eye(len(model.components_)) + weighted @ model.components_.T
        return model.mean_, weighted.T @ np.linalg.inv(inner), 1.0
    if name == "SparseRandomProjection":
        components = model.components_
        dense = components.toarray() if hasattr(components, "toarray") else components
        return None, np.asarray(dense, np.float64).T, 1.0
    if name == "RBFSampler":
        return None, np.asarray(model.random_weights_), float(np.sqrt(2.0 / model.n_components))
    raise ConversionRefused(f"{name}: not a product with a matrix")


def _nystroem(write: Writer, model: Any, matrix: str) -> str:
    rows = np.asarray(model.components_, np.float64)
    gamma = 1.0 / rows.shape[1] if model.gamma is None else float(model.gamma)
    product = write.add("MatMul", matrix, write.number(-2.0 * rows.T))
    axis = write.constant(np.array([1], np.int64))
    own = write.add("ReduceSum", write.add("Mul", matrix, matrix), axis, keepdims=1)
    theirs = write.number((rows**2).sum(axis=1)[None, :])
    distance = write.add("Add", write.add("Add", own, theirs), product)
    distance = write.add("Max", distance, write.number(0.0))
    kernel = write.add("Exp", write.add("Mul", distance, write.number(-gamma)))
    return write.add("MatMul", kernel, write.number(np.asarray(model.normalization_).T))


def convert_selection(scope: Any, operator: Any, container: Any) -> None:
    """Write the columns that were chosen, called by skl2onnx."""
    write = Writer(scope, container, operator)
    kept = np.flatnonzero(operator.raw_operator.get_support())
    write.result(write.add("Gather", write.numbers(), write.constant(kept), axis=1))


def shape_of_selection(operator: Any) -> None:
    """Tell skl2onnx how many columns come out."""
    kind = type(operator.inputs[0].type)
    operator.outputs[0].type = kind([None, int(operator.raw_operator.get_support().sum())])

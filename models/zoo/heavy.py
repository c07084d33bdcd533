"""Models that are heavy to hold, each in its own way: dense weights, and trees.

Their weights are made up; they serve to see what a load and an unload do to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx

from models.convert.graph import Graph
from models.convert.trees import LEAF, LESS_OR_EQUAL, Forest, Tree, ensemble_node
from models.signature import Signature, TensorSpec

DENSE_FILE: Final = "dense.bin"
FOREST_FEATURES: Final = 30
_SEED: Final = 7
_WIDTH: Final = 2048
_MATRIX_BYTES: Final = _WIDTH * _WIDTH * 4
MATRIX_MIB: Final = _MATRIX_BYTES >> 20
# Keeps what passes through a layer and its Relu as large as it was.
_SCALE: Final = np.float32((2 / _WIDTH) ** 0.5)
_DEPTH: Final = 13


def write_dense(folder: Path, mib: int) -> Path:
    """Write layers of ``(2048, 2048) float32`` that take about ``mib`` MiB in all, 16 each.

    Input ``x`` and output ``y``, ``(rows, 2048) float32``. The weights are external data.
    """
    if mib < MATRIX_MIB:
        raise ValueError(f"dense: {mib} MiB is not allowed: use {MATRIX_MIB} or more")
    layers = mib // MATRIX_MIB
    rng = np.random.default_rng(_SEED)
    graph = Graph()
    hidden = "x"
    with (folder / DENSE_FILE).open("wb") as file:
        for index in range(layers):
            weight = rng.standard_normal((_WIDTH, _WIDTH), dtype=np.float32) * _SCALE
            name = f"weight_{index}"
            graph.constants.append(_external(name, file.tell()))
            file.write(weight.astype("<f4", copy=False).data)
            hidden = graph.add("MatMul", hidden, name)
            hidden = graph.add("Relu", hidden, output="y" if index == layers - 1 else "")
    signature = Signature(
        inputs=(TensorSpec("x", "FP32", (-1, _WIDTH)),),
        outputs=(TensorSpec("y", "FP32", (-1, _WIDTH)),),
    )
    path = folder / "dense.onnx"
    path.write_bytes(graph.model(signature).SerializeToString(deterministic=True))
    return path


def write_forest(folder: Path, nodes: int) -> Path:
    """Write a forest of full trees with about ``nodes`` nodes in all, 16,383 a tree.

    Input ``x``, ``(rows, 30) float32``; output ``y``, ``(rows, 1) float32``.
    """
    size = 2 ** (_DEPTH + 1) - 1
    if nodes < size:
        raise ValueError(f"forest: {nodes} nodes are not allowed: use {size} or more")
    rng = np.random.default_rng(_SEED)
    forest = Forest(tuple(_tree(rng, size) for _ in range(nodes // size)), (0.0,))
    graph = Graph(nodes=[ensemble_node(forest, "float32", "x", "y")])
    signature = Signature(
        inputs=(TensorSpec("x", "FP32", (-1, FOREST_FEATURES)),),
        outputs=(TensorSpec("y", "FP32", (-1, 1)),),
    )
    path = folder / "forest.onnx"
    path.write_bytes(graph.model(signature).SerializeToString(deterministic=True))
    return path


def _external(name: str, offset: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name=name, data_type=onnx.TensorProto.FLOAT, dims=[_WIDTH, _WIDTH],
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    fields = {"location": DENSE_FILE, "offset": str(offset), "length": str(_MATRIX_BYTES)}
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _tree(rng: np.random.Generator, size: int) -> Tree:
    """Return a full tree, its nodes level by level: the children of i are 2i + 1 and 2i + 2."""
    index = np.arange(size, dtype=np.int64)
    is_leaf = index >= size // 2
    return Tree(
        mode=np.where(is_leaf, LEAF, LESS_OR_EQUAL).astype(np.int64),
        feature=np.where(is_leaf, 0, rng.integers(0, FOREST_FEATURES, size)).astype(np.int64),
        threshold=np.where(is_leaf, 0.0, rng.random(size)),
        left=np.where(is_leaf, 0, 2 * index + 1),
        right=np.where(is_leaf, 0, 2 * index + 2),
        missing_left=np.zeros(size, dtype=np.bool_),
        values=rng.standard_normal((size, 1)) * 0.01,
    )

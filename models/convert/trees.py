"""Tree ensembles as arrays, and the one operator of ONNX that computes them, exactly.

Every tree library here compares in double: ``x <= threshold``. Rounding a threshold to the
nearest float32 sends inputs that lie between the two to the other branch, so thresholds are
rounded toward minus infinity: for every float32 ``x``, ``x <= floor32(t)`` is ``x <= t``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from registry.manifest import JsonObject

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Precision: TypeAlias = Literal["float32", "float64"]

LEAF: Final = 0
LESS_OR_EQUAL: Final = 1
EQUAL: Final = 2
ML_DOMAIN: Final = "ai.onnx.ml"
ML_OPSET: Final = 3
OPSET: Final = 18
IR_VERSION: Final = 9
_MODES: Final = (b"LEAF", b"BRANCH_LEQ", b"BRANCH_EQ")


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree as parallel arrays over its nodes; node 0 is the root.

    ``mode``: LEAF, LESS_OR_EQUAL or EQUAL; the left child is taken where the comparison holds,
    and for NaN where ``missing_left`` says so. ``values``: ``(nodes, k)``, read at leaves only and
    added to the targets ``first_target .. first_target + k``. Nodes may share a left child: that
    is how membership in a set is written, as a chain of EQUAL.
    """

    mode: Ints
    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    missing_left: NDArray[np.bool_]
    values: Floats
    first_target: int = 0


@dataclass(frozen=True, slots=True)
class Forest:
    """The sum of ``trees`` and ``base``, one number for each target."""

    trees: tuple[Tree, ...]
    base: tuple[float, ...]

    @property
    def target_count(self) -> int:
        """Numbers that a row gets."""
        return len(self.base)

    def thresholds(self, features: int) -> list[Floats]:
        """Return the distinct thresholds of each feature, in order."""
        if not self.trees:
            return [np.empty(0) for _ in range(features)]
        is_branch = np.concatenate([t.mode != LEAF for t in self.trees])
        feature = np.concatenate([t.feature for t in self.trees])[is_branch]
        threshold = np.concatenate([t.threshold for t in self.trees])[is_branch]
        return [np.unique(threshold[feature == i]) for i in range(features)]


def floor_float32(values: Floats) -> Floats:
    """Return the greatest float32 that is not above each value, as doubles."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
        below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > values, below, rounded).astype(np.float64)


def ensemble_node(forest: Forest, precision: Precision, source: str, target: str) -> onnx.NodeProto:
    """Return the node that maps ``source`` ``(rows, features)`` to ``target`` ``(rows, targets)``.

    ``precision`` is the type of ``source``; the sum over the trees is kept in it too. The result
    is always float32, as the operator wants it.
    """
    node = onnx.NodeProto(op_type="TreeEnsembleRegressor", domain=ML_DOMAIN, name=target)
    node.input.append(source)
    node.output.append(target)
    for name, value in ensemble_attributes(forest, precision).items():
        node.attribute.append(_attribute(name, value))
    return node


Attribute: TypeAlias = int | str | list[int] | list[float] | list[str] | onnx.TensorProto


def ensemble_attributes(forest: Forest, precision: Precision) -> dict[str, Attribute]:
    """Return the attributes of the operator (ai.onnx.ml 3, ``TreeEnsembleRegressor``)."""
    trees = forest.trees or (_zero_tree(),)
    sizes = [len(tree.mode) for tree in trees]
    modes = np.concatenate([tree.mode for tree in trees])
    thresholds = np.concatenate([tree.threshold for tree in trees])
    node_ids = np.concatenate([np.arange(size) for size in sizes])
    tree_ids = np.repeat(np.arange(len(trees)), sizes)
    names = [mode.decode() for mode in _MODES]
    attributes: dict[str, Attribute] = {
        "n_targets": forest.target_count,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        "nodes_treeids": tree_ids.tolist(),
        "nodes_nodeids": node_ids.tolist(),
        "nodes_featureids": np.concatenate([t.feature for t in trees]).tolist(),
        "nodes_modes": [names[mode] for mode in modes],
        "nodes_truenodeids": np.concatenate([t.left for t in trees]).tolist(),
        "nodes_falsenodeids": np.concatenate([t.right for t in trees]).tolist(),
        "nodes_missing_value_tracks_true": np.concatenate([t.missing_left for t in trees])
        .astype(np.int64)
        .tolist(),
    }
    weights = _weights(trees)
    for name in ("target_treeids", "target_nodeids", "target_ids"):
        attributes[name] = weights[name].tolist()
    numbers = {
        "nodes_values": thresholds,
        "target_weights": weights["target_weights"],
        "base_values": np.array(forest.base, dtype=np.float64),
    }
    if not any(forest.base):
        del numbers["base_values"]
    if precision == "float32":
        numbers["nodes_values"] = np.where(modes == LEAF, 0.0, floor_float32(thresholds))
    for name, values in numbers.items():
        if precision == "float32":
            attributes[name] = values.astype(np.float32).tolist()
        else:
            attributes[f"{name}_as_tensor"] = onnx.numpy_helper.from_array(values, name)
    return attributes


def _weights(trees: Sequence[Tree]) -> dict[str, NDArray[np.generic]]:
    columns: dict[str, list[NDArray[np.generic]]] = {
        "target_treeids": [], "target_nodeids": [], "target_ids": [], "target_weights": [],
    }  # fmt: skip
    for index, tree in enumerate(trees):
        leaves = np.flatnonzero(tree.mode == LEAF)
        width = tree.values.shape[1]
        columns["target_treeids"].append(np.full(len(leaves) * width, index))
        columns["target_nodeids"].append(np.repeat(leaves, width))
        columns["target_ids"].append(
            np.tile(np.arange(tree.first_target, tree.first_target + width), len(leaves))
        )
        columns["target_weights"].append(tree.values[leaves].ravel())
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _zero_tree() -> Tree:
    nothing = np.zeros(1, dtype=np.int64)
    return Tree(
        mode=nothing,
        feature=nothing,
        threshold=np.zeros(1),
        left=nothing,
        right=nothing,
        missing_left=np.zeros(1, dtype=np.bool_),
        values=np.zeros((1, 1)),
    )


def _attribute(name: str, value: Attribute) -> onnx.AttributeProto:
    # onnx.helper looks at every element in Python; forests have millions.
    kinds = onnx.AttributeProto
    if isinstance(value, int):
        return onnx.AttributeProto(name=name, type=kinds.INT, i=value)
    if isinstance(value, str):
        return onnx.AttributeProto(name=name, type=kinds.STRING, s=value.encode())
    if isinstance(value, onnx.TensorProto):
        return onnx.AttributeProto(name=name, type=kinds.TENSOR, t=value)
    attribute = onnx.AttributeProto(name=name)
    if value and isinstance(value[0], str):
        attribute.type = kinds.STRINGS
        attribute.strings.extend(str(item).encode() for item in value)
    elif value and isinstance(value[0], float):
        attribute.type = kinds.FLOATS
        attribute.floats.extend(float(item) for item in value)
    else:
        attribute.type = kinds.INTS
        attribute.ints.extend(int(item) for item in value)
    return attribute


def library_versions(*names: str) -> JsonObject:
    """Return the installed version of each distribution, for the record of a conversion."""
    from importlib.metadata import PackageNotFoundError, version

    found: JsonObject = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

"""The JSON dump of a CatBoost model over numbers, read into a Forest.

Format: ``catboost/docs`` on the JSON export; the decision: a number goes right where it is
above a border, both float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from models.convert.trees import LEAF, LESS_OR_EQUAL, Forest, Ints, Tree
from models.errors import ConversionRefused

# Trees of one split a level are written out: 2 ** depth leaves each.
_MAX_DEPTH: Final = 16


def parse_json_dump(document: Mapping[str, Any]) -> Forest:
    """Return the trees over the flat features, or raise ConversionRefused with the reason."""
    try:
        scale, bias = document["scale_and_bias"]
        base = [float(value) for value in (bias if isinstance(bias, list) else [bias])]
        floats = document["features_info"].get("float_features") or []
        features = _Features(floats)
        if "oblivious_trees" in document:
            trees = [_oblivious(t, features, float(scale)) for t in document["oblivious_trees"]]
        else:
            trees = [_nested(t, features, float(scale)) for t in document["trees"]]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ConversionRefused(f"CatBoost: the JSON dump is not as expected: {error}") from error
    width = trees[0].values.shape[1] if trees else len(base)
    if len(base) == 1 and width > 1:
        base *= width
    return Forest(tuple(trees), tuple(base))


class _Features:
    """The flat feature of each numeric one, and where its missing values go."""

    def __init__(self, floats: list[Mapping[str, Any]]) -> None:
        self.flat = {int(f["feature_index"]): int(f["flat_feature_index"]) for f in floats}
        # NaN compares as not above a border, unless it is treated as the greatest number.
        self.is_nan_above = {
            int(f["feature_index"]): f["nan_value_treatment"] == "AsTrue" for f in floats
        }

    def split(self, split: Mapping[str, Any]) -> tuple[int, float, bool]:
        kind = split.get("split_type")
        if kind != "FloatFeature":
            raise ConversionRefused(f"splits by {kind} have no graph")
        feature = int(split["float_feature_index"])
        border = float(np.float32(split["border"]))
        return self.flat[feature], border, not self.is_nan_above[feature]


def _oblivious(tree: Mapping[str, Any], features: _Features, scale: float) -> Tree:
    splits = [features.split(split) for split in tree.get("splits") or []]
    depth = len(splits)
    if depth > _MAX_DEPTH:
        raise ConversionRefused(f"a tree of depth {depth} has no graph")
    leaves = 1 << depth
    values = np.array(tree["leaf_values"], dtype=np.float64).reshape(leaves, -1) * scale
    inner = leaves - 1
    # Nodes as in a heap; split i gives bit i of a leaf's number, and the last one stands on top.
    level = np.floor(np.log2(np.arange(1, inner + 1))).astype(np.int64)
    order: Ints = depth - 1 - level
    at = np.arange(inner)
    size = inner + leaves
    mode = np.full(size, LEAF)
    mode[:inner] = LESS_OR_EQUAL
    feature, threshold = np.zeros(size, np.int64), np.zeros(size)
    missing_left = np.zeros(size, np.bool_)
    left, right = np.zeros(size, np.int64), np.zeros(size, np.int64)
    if depth:
        columns = list(zip(*splits, strict=True))
        feature[:inner] = np.array(columns[0], np.int64)[order]
        threshold[:inner] = np.array(columns[1], np.float64)[order]
        missing_left[:inner] = np.array(columns[2], np.bool_)[order]
        left[:inner], right[:inner] = 2 * at + 1, 2 * at + 2
    full = np.zeros((size, values.shape[1]))
    full[inner:] = values
    return Tree(mode, feature, threshold, left, right, missing_left, full)


def _nested(tree: Mapping[str, Any], features: _Features, scale: float) -> Tree:
    rows: list[tuple[int, int, float, bool]] = []
    children: list[list[int]] = []
    values: list[list[float]] = []
    pending: list[tuple[Mapping[str, Any], int, int]] = [(tree, -1, 0)]
    while pending:
        node, parent, side = pending.pop()
        at = len(rows)
        if parent >= 0:
            children[parent][side] = at
        children.append([0, 0])
        if "split" in node:
            feature, border, is_missing_left = features.split(node["split"])
            rows.append((LESS_OR_EQUAL, feature, border, is_missing_left))
            values.append([])
            pending += [(node["left"], at, 0), (node["right"], at, 1)]
        else:
            value = node["value"]
            rows.append((LEAF, 0, 0.0, False))
            values.append([float(v) for v in (value if isinstance(value, list) else [value])])
    width = max(map(len, values))
    table = np.array([value or [0.0] * width for value in values]) * scale
    modes, flat, borders, missing = zip(*rows, strict=True)
    pair = np.array(children, np.int64)
    return Tree(
        np.array(modes, np.int64), np.array(flat, np.int64), np.array(borders, np.float64),
        pair[:, 0], pair[:, 1], np.array(missing, np.bool_), table,
    )  # fmt: skip

"""The text form of a LightGBM model, read into a Forest and checked before any native code.

Format: ``Tree::ToString`` and ``GBDT::SaveModelToString`` of LightGBM (version=v2 to v4); the
decisions: ``Tree::NumericalDecision`` and ``CategoricalDecision`` in its ``tree.h``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.convert.tree_sets import with_sets
from models.convert.trees import EQUAL, LEAF, LESS_OR_EQUAL, Floats, Forest, Ints, Tree
from models.errors import ConversionRefused

# LightGBM takes every |x| up to this for zero, in training and in prediction (kZeroThreshold).
ZERO: Final = float(np.float32(1e-35))
_CATEGORICAL: Final = 1
_DEFAULT_LEFT: Final = 2
_MISSING_ZERO: Final = 1
_MAX_CODE: Final = 2**24  # a float32 holds every whole number up to here


@dataclass(frozen=True, slots=True)
class TextModel:
    """What the text says. ``objective``: its name and options, such as ``("binary","sigmoid:1")``.

    ``zero_is_missing``: for each feature, whether zero and NaN are one thing to its splits.
    ``coded``: for each feature, whether its splits are by category code.
    ``pandas_categories``: the values of each pandas column of dtype category, in column order.
    ``is_linear``: leaves hold linear models, which ``forest`` does not.
    """

    objective: tuple[str, ...]
    features: tuple[str, ...]
    infos: tuple[str, ...]
    forest: Forest
    zero_is_missing: tuple[bool, ...]
    coded: tuple[bool, ...]
    pandas_categories: tuple[tuple[object, ...], ...]
    is_linear: bool


@dataclass(slots=True)
class _Facts:
    """What the trees say about the features, gathered while they are read."""

    missing_types: list[set[int]]
    coded: list[bool]


def parse_text_model(text: str) -> TextModel:
    """Read a whole text model, or raise ConversionRefused saying what is wrong with it."""
    head, blocks, tail = _split(text)
    is_linear = any(b.get("is_linear", "0") != "0" for b in blocks)
    features = tuple(head.get("feature_names", "").split())
    width = _whole(head, "max_feature_idx") + 1
    per_iteration = _whole(head, "num_tree_per_iteration")
    if len(features) != width or not 1 <= per_iteration <= 100_000:
        raise ConversionRefused(
            f"LightGBM: {len(features)} feature_names for max_feature_idx {width - 1}, "
            f"num_tree_per_iteration {per_iteration}: the model text is damaged"
        )
    if len(blocks) % per_iteration:
        raise ConversionRefused(
            f"LightGBM: {len(blocks)} trees are no multiple of {per_iteration} an iteration"
        )
    facts = _Facts([set() for _ in range(width)], [False] * width)
    scale = 1.0
    if "average_output" in head and blocks:  # a random forest: the mean, not the sum
        scale = per_iteration / len(blocks)
    trees = []
    for index, block in enumerate(blocks):
        try:
            trees.append(_tree(block, index % per_iteration, scale, facts))
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise ConversionRefused(f"LightGBM: tree {index} is damaged: {error}") from error
    return TextModel(
        objective=tuple(head.get("objective", "").split()),
        features=features,
        infos=tuple(head.get("feature_infos", "").split()),
        forest=Forest(tuple(trees), (0.0,) * per_iteration),
        zero_is_missing=_zero_is_missing(facts, features),
        coded=tuple(facts.coded),
        pandas_categories=_pandas_categories(tail),
        is_linear=is_linear,
    )


def _split(text: str) -> tuple[dict[str, str], list[dict[str, str]], str]:
    body, end, tail = text.partition("\nend of trees")
    if not end:
        raise ConversionRefused("LightGBM: the model text is cut off: 'end of trees' does not come")
    head: dict[str, str] = {}
    blocks: list[dict[str, str]] = []
    current = head
    for line in body.splitlines():
        key, equals, value = line.partition("=")
        if key == "Tree" and equals:
            current = {}
            blocks.append(current)
        elif key:
            current[key] = value
    declared = len(head.get("tree_sizes", "").split())
    if declared and declared != len(blocks):
        raise ConversionRefused(f"LightGBM: {declared} trees are declared, {len(blocks)} are there")
    return head, blocks, tail


def _whole(fields: dict[str, str], key: str) -> int:
    try:
        return int(fields[key])
    except (KeyError, ValueError) as error:
        raise ConversionRefused(f"LightGBM: field {key!r} is missing or no integer") from error


def _tree(block: dict[str, str], target: int, scale: float, facts: _Facts) -> Tree:
    leaves = int(block["num_leaves"])
    inner = leaves - 1
    leaf_values = _floats(block, "leaf_value", leaves) * scale
    if inner == 0:
        return _assemble(
            np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 2), np.int64),
            np.zeros(0, np.bool_), leaf_values, target,
        )  # fmt: skip
    feature = _ints(block, "split_feature", inner)
    if feature.min() < 0 or feature.max() >= len(facts.coded):
        raise ValueError(f"split_feature {feature.max()} of {len(facts.coded)} features")
    threshold = _floats(block, "threshold", inner)
    decision = _ints(block, "decision_type", inner)
    children = np.stack(
        [_ints(block, "left_child", inner), _ints(block, "right_child", inner)], axis=1
    )
    _check_children(children, leaves)
    children = np.where(children < 0, inner + ~children, children)
    is_coded = (decision & _CATEGORICAL) != 0
    missing_type = (decision >> 2) & 3
    _note(facts, feature, missing_type, is_coded)
    default_left = (decision & _DEFAULT_LEFT) != 0
    # Without a missing direction NaN is computed as 0.
    missing_left = np.where(missing_type == 0, threshold >= 0.0, default_left) & ~is_coded
    mode = np.where(is_coded, EQUAL, LESS_OR_EQUAL)
    threshold = np.where(is_coded, threshold, _around_zero(threshold))
    tree = _assemble(mode, feature, threshold, children, missing_left, leaf_values, target)
    return _with_sets(tree, block) if is_coded.any() else tree


def _around_zero(threshold: Floats) -> Floats:
    """Return thresholds for raw inputs, where LightGBM first flushes tiny inputs to zero."""
    tiny = np.abs(threshold) <= ZERO
    below = float(np.nextafter(np.float32(-ZERO), np.float32(-1)))
    return np.where(tiny, np.where(threshold < 0, below, ZERO), threshold)


def _assemble(
    mode: Ints, feature: Ints, threshold: Floats, children: Ints, missing_left: np.ndarray,
    leaf_values: Floats, target: int,
) -> Tree:  # fmt: skip
    inner, leaves = len(mode), len(leaf_values)
    zeros = np.zeros(leaves, np.int64)
    values = np.zeros((inner + leaves, 1))
    values[inner:, 0] = leaf_values
    return Tree(
        mode=np.concatenate([mode, np.full(leaves, LEAF)]),
        feature=np.concatenate([feature, zeros]),
        threshold=np.concatenate([threshold, np.zeros(leaves)]),
        left=np.concatenate([children[:, 0], zeros]),
        right=np.concatenate([children[:, 1], zeros]),
        missing_left=np.concatenate([missing_left, zeros.astype(np.bool_)]),
        values=values,
        first_target=target,
    )


def _with_sets(tree: Tree, block: dict[str, str]) -> Tree:
    """Write each split by a set of category codes as the chain that it is."""
    boundaries = [int(x) for x in block["cat_boundaries"].split()]
    words = [int(x) for x in block["cat_threshold"].split()]
    chosen = tree.threshold[tree.mode == EQUAL]
    if (
        boundaries != sorted(boundaries)
        or boundaries[0] != 0
        or boundaries[-1] != len(words)
        or chosen.min() < 0
        or chosen.max() >= len(boundaries) - 1
    ):
        raise ValueError("cat_boundaries do not fit cat_threshold")
    sets = {}
    for node in np.flatnonzero(tree.mode == EQUAL):
        which = int(tree.threshold[node])
        sets[int(node)] = list(_codes(words[boundaries[which] : boundaries[which + 1]]))
    return with_sets(tree, sets)


def _codes(words: list[int]) -> Iterator[int]:
    if len(words) * 32 > _MAX_CODE:
        raise ValueError(f"category codes above {_MAX_CODE} are not exact as float32")
    for position, word in enumerate(words):
        for bit in range(32):
            if word >> bit & 1:
                yield position * 32 + bit


def _check_children(children: Ints, leaves: int) -> None:
    inner = leaves - 1
    parents = np.arange(inner)[:, None]
    is_inner = children >= 0
    # A child always stands after its parent, so no walk can go in a circle.
    if (is_inner & ((children <= parents) | (children >= inner))).any():
        raise ValueError("a child stands before its parent or does not exist")
    if sorted(children[is_inner]) != list(range(1, inner)) or sorted(~children[~is_inner]) != list(
        range(leaves)
    ):
        raise ValueError("a node has no parent or several")


def _note(facts: _Facts, feature: Ints, missing_type: Ints, is_coded: np.ndarray) -> None:
    for index, missing, coded in {
        (int(f), int(m), bool(c)) for f, m, c in zip(feature, missing_type, is_coded, strict=True)
    }:
        facts.coded[index] |= coded
        if not coded:
            facts.missing_types[index].add(missing)


def _zero_is_missing(facts: _Facts, features: tuple[str, ...]) -> tuple[bool, ...]:
    for name, kinds in zip(features, facts.missing_types, strict=True):
        if _MISSING_ZERO in kinds and len(kinds) > 1:
            raise ConversionRefused(
                f"LightGBM: feature {name!r} takes zero for missing in some trees and not in "
                "others: train it in one run, or without zero_as_missing"
            )
    return tuple(_MISSING_ZERO in kinds for kinds in facts.missing_types)


def _pandas_categories(tail: str) -> tuple[tuple[object, ...], ...]:
    for line in tail.splitlines():
        if line.startswith("pandas_categorical:"):
            try:
                found = json.loads(line.removeprefix("pandas_categorical:"))
                return tuple(tuple(values) for values in found or ())
            except (ValueError, TypeError) as error:
                raise ConversionRefused("LightGBM: pandas_categorical is damaged") from error
    return ()


def _ints(block: dict[str, str], key: str, count: int) -> Ints:
    return _counted(np.array([int(x) for x in block[key].split()], dtype=np.int64), key, count)


def _floats(block: dict[str, str], key: str, count: int) -> Floats:
    return _counted(np.array([float(x) for x in block[key].split()], dtype=np.float64), key, count)


def _counted(values: np.ndarray, key: str, count: int) -> np.ndarray:
    if count < 1 or len(values) != count:
        raise ValueError(f"{key} has {len(values)} values, {count} are expected")
    return values

"""The JSON or UBJSON form of an XGBoost model, read into a Forest.

Format: ``model.schema`` in XGBoost's documentation; the decisions: ``GetNextNode`` in its
``predict_fn.h`` and ``Decision`` in ``common/categorical.h``. It branches left where
``x < threshold`` in float32; for a float32 ``x`` that is ``x <= `` the next float32 below.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from models.convert.trees import EQUAL, LEAF, LESS_OR_EQUAL, Floats, Forest, Ints, Tree
from models.convert.ubjson import parse_ubjson
from models.errors import ConversionRefused

_MAX_CODE: Final = 2**24


@dataclass(frozen=True, slots=True)
class XgboostModel:
    """What the JSON says.

    ``base``: the stored base_score of each target, in the space of predictions, not margins.
    ``coded``: for each feature, whether its splits are by category code.
    ``categories``: for each feature, the values behind its codes; None where there are none.
    ``forest``: None for trees whose leaves hold several numbers, and where there are no trees.
    ``linear``: of a linear booster, the weights ``(width + 1, targets)``, the last row the bias.
    """

    objective: str
    options: Mapping[str, Any]
    booster: str
    classes: int
    targets: int
    features: tuple[str, ...] | None
    width: int
    base: tuple[float, ...]
    forest: Forest | None
    coded: tuple[bool, ...]
    categories: tuple[tuple[str, ...] | tuple[int, ...] | None, ...]
    attributes: Mapping[str, str]
    linear: Floats | None = None


def parse_model(data: bytes) -> XgboostModel:
    """Read a whole model, JSON or UBJSON, or raise ConversionRefused with what is wrong."""
    try:
        # A key follows the brace: in JSON a quoted one, in UBJSON one with its length.
        is_text = data[1:].lstrip()[:1] in (b'"', b"")
        document = json.loads(data) if is_text else parse_ubjson(data)
        return _model(document["learner"])
    except RecursionError:
        raise ConversionRefused("XGBoost: the model file is nested too deep") from None
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise ConversionRefused(f"XGBoost: the model file is damaged: {what}") from error


def _model(learner: Mapping[str, Any]) -> XgboostModel:
    parameters = learner["learner_model_param"]
    booster = str(learner["gradient_booster"]["name"])
    if booster not in ("gbtree", "dart", "gblinear"):
        raise ConversionRefused(f"XGBoost: booster {booster!r} is not supported: use trees")
    width = int(parameters["num_feature"])
    classes, targets = int(parameters["num_class"]), int(parameters.get("num_target", 1))
    outputs = max(classes, targets, 1)
    ensemble = learner["gradient_booster"]
    weights: Sequence[float] | None = None
    if booster == "dart":
        weights, ensemble = ensemble["weight_drop"], ensemble["gbtree"]
    model = ensemble["model"]
    coded = [False] * width
    forest = linear = None
    if booster == "gblinear":
        linear = _linear(model, width, outputs)
    elif not any(int(t["tree_param"].get("size_leaf_vector", 1)) > 1 for t in model["trees"]):
        forest = _forest(model, weights, outputs, coded)
    names = tuple(str(name) for name in learner.get("feature_names") or ())
    return XgboostModel(
        objective=str(learner["objective"]["name"]),
        options=learner["objective"],
        booster=booster,
        classes=classes,
        targets=targets,
        features=names or None,
        width=width,
        base=_base(str(parameters["base_score"]), outputs),
        forest=forest,
        coded=tuple(coded),
        categories=_categories(model.get("cats") or {}, width, names),
        attributes=learner.get("attributes") or {},
        linear=linear,
    )


def _linear(model: Mapping[str, Any], width: int, outputs: int) -> Floats:
    weights = np.array(model["weights"], dtype=np.float32).astype(np.float64)
    if weights.size != (width + 1) * outputs:
        raise ValueError(f"{weights.size} weights for {width} features and {outputs} targets")
    return weights.reshape(width + 1, outputs)


def _base(text: str, outputs: int) -> tuple[float, ...]:
    # Up to 3.0 one number for all targets, from 3.1 on a list with one for each.
    numbers = tuple(float(np.float32(part)) for part in text.strip("[]").split(","))
    if len(numbers) == 1:
        return numbers * outputs
    if len(numbers) != outputs:
        raise ValueError(f"base_score has {len(numbers)} numbers for {outputs} targets")
    return numbers


def _forest(
    model: Mapping[str, Any], weights: Sequence[float] | None, outputs: int, coded: list[bool]
) -> Forest:
    trees, targets = model["trees"], model["tree_info"]
    if len(targets) != len(trees) or (weights is not None and len(weights) != len(trees)):
        raise ValueError(f"{len(trees)} trees, {len(targets)} targets")
    if any(not 0 <= target < outputs for target in targets):
        raise ValueError(f"tree_info names a target beyond {outputs}")
    read = tuple(
        _tree(tree, int(target), np.float32(1.0 if weights is None else weights[i]), coded)
        for i, (tree, target) in enumerate(zip(trees, targets, strict=True))
    )
    return Forest(read, (0.0,) * outputs)


def _tree(tree: Mapping[str, Any], target: int, weight: np.float32, coded: list[bool]) -> Tree:
    left = np.array(tree["left_children"], dtype=np.int64)
    right = np.array(tree["right_children"], dtype=np.int64)
    feature = np.array(tree["split_indices"], dtype=np.int64)
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    is_left_default = np.array(tree["default_left"], dtype=np.int64) != 0
    by_category = np.array(tree.get("split_type", [0] * len(left)), dtype=np.int64) == 1
    if not len(left) == len(right) == len(feature) == len(condition) == len(by_category):
        raise ValueError("the arrays of a tree have different lengths")
    kept = _reachable(left, right)
    number = np.full(len(left), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    is_leaf = left[kept] == -1
    by_category = by_category[kept] & ~is_leaf
    feature = np.where(is_leaf, 0, feature[kept])
    if feature.min() < 0 or feature.max() >= len(coded):
        raise ValueError(f"split_indices names feature {feature.max()} of {len(coded)}")
    for index in np.unique(feature[by_category]):
        coded[index] = True
    below = np.nextafter(condition[kept], np.float32(-np.inf)).astype(np.float64)
    # Members of a set branch right, so the two sides change places.
    first = np.where(by_category, right[kept], left[kept])
    second = np.where(by_category, left[kept], right[kept])
    values = np.where(is_leaf, condition[kept] * weight, 0).astype(np.float64)
    result = Tree(
        mode=np.where(is_leaf, LEAF, np.where(by_category, EQUAL, LESS_OR_EQUAL)),
        feature=feature,
        threshold=np.where(is_leaf, 0.0, below),
        left=np.where(is_leaf, 0, number[first]),
        right=np.where(is_leaf, 0, number[second]),
        missing_left=(is_left_default[kept] ^ by_category) & ~is_leaf,
        values=values[:, None],
        first_target=target,
    )
    if not by_category.any():
        return result
    sets = _sets(tree)
    return _with_sets(result, {int(number[node]): codes for node, codes in sets.items()})


def _reachable(left: Ints, right: Ints) -> Ints:
    """Return the nodes that a walk from the root reaches, the root first; others were pruned."""
    size = len(left)
    is_seen = np.zeros(size, dtype=np.bool_)
    level = np.zeros(1, dtype=np.int64)
    order = []
    while len(level):
        if level.min() < 0 or level.max() >= size or is_seen[level].any():
            raise ValueError("a node of a tree has no child or two parents")
        if len(np.unique(level)) != len(level):
            raise ValueError("a node of a tree has two parents")
        is_seen[level] = True
        order.append(level)
        inner = level[left[level] != -1]
        level = np.concatenate([left[inner], right[inner]])
    return np.concatenate(order)


def _sets(tree: Mapping[str, Any]) -> dict[int, list[int]]:
    members = [int(code) for code in tree["categories"]]
    found = {}
    for node, start, size in zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"],
        strict=True,
    ):  # fmt: skip
        codes = members[int(start) : int(start) + int(size)]
        if len(codes) != size or any(not 0 <= code < _MAX_CODE for code in codes):
            raise ValueError(f"the categories of node {node} are damaged")
        found[int(node)] = codes
    return found


def _with_sets(tree: Tree, sets: Mapping[int, list[int]]) -> Tree:
    """Write each split by a set of codes as a chain of EQUAL with one left child."""
    threshold, right = tree.threshold.copy(), tree.right.copy()
    owners: list[int] = []
    codes: list[int] = []
    nexts: list[int] = []
    for node in np.flatnonzero(tree.mode == EQUAL).tolist():
        members = sets[node] or [-1]  # nothing is in the set: a comparison that never holds
        threshold[node] = members[0]
        end = int(right[node])
        for position, code in enumerate(members[1:]):
            new = len(threshold) + len(owners)
            if position == 0:
                right[node] = new
            owners.append(node)
            codes.append(code)
            nexts.append(new + 1 if position + 2 < len(members) else end)
    at = np.array(owners, dtype=np.int64)
    return Tree(
        mode=np.concatenate([tree.mode, tree.mode[at]]),
        feature=np.concatenate([tree.feature, tree.feature[at]]),
        threshold=np.concatenate([threshold, np.array(codes, dtype=np.float64)]),
        left=np.concatenate([tree.left, tree.left[at]]),
        right=np.concatenate([right, np.array(nexts, dtype=np.int64)]),
        missing_left=np.concatenate([tree.missing_left, tree.missing_left[at]]),
        values=np.concatenate([tree.values, tree.values[at]]),
        first_target=tree.first_target,
    )


def _categories(
    container: Mapping[str, Any], width: int, names: Sequence[str]
) -> tuple[tuple[str, ...] | tuple[int, ...] | None, ...]:
    """Return the categories of each feature, as Arrow holds them: text with offsets, or numbers."""
    encodings = container.get("enc") or []
    if not encodings:
        return (None,) * width
    if len(encodings) != width:
        raise ValueError(f"{len(encodings)} category lists for {width} features")
    found: list[tuple[str, ...] | tuple[int, ...] | None] = []
    for index, encoding in enumerate(encodings):
        values = encoding["values"]
        name = repr(names[index]) if names else index
        if not len(values):
            found.append(None)
        elif "offsets" in encoding:
            if min(values) < 0:  # its file counts characters where it should count bytes
                raise ConversionRefused(
                    f"XGBoost: the categories of feature {name} are not ASCII, and XGBoost has "
                    "saved them cut off: train with other names for them"
                )
            raw, at = bytes(values), encoding["offsets"]
            found.append(tuple(raw[a:b].decode() for a, b in itertools.pairwise(at)))
        elif all(isinstance(value, int | np.integer) for value in values):
            found.append(tuple(int(value) for value in values))
        else:
            raise ConversionRefused(
                f"XGBoost: the categories of feature {name} must be text or whole numbers"
            )
    return tuple(found)

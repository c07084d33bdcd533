"""Splits by a set of categories, as trees of single comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from models.convert.trees import EQUAL, Tree


def with_sets(tree: Tree, sets: Mapping[int, Sequence[int]]) -> Tree:
    """Return ``tree`` with the nodes of ``sets`` as chains of EQUAL that share one left child.

    ``sets``: for each such node the codes that go left.
    """
    columns: dict[str, list[int | float | bool]] = {
        "mode": [], "feature": [], "threshold": [], "left": [], "right": [], "missing": [],
    }  # fmt: skip
    mode = tree.mode.copy()
    threshold = tree.threshold.copy()
    right = tree.right.copy()
    for node, members in sets.items():
        codes = list(members) or [-1]  # nothing is in the set: a comparison that never holds
        mode[node] = EQUAL
        threshold[node] = codes[0]
        at = node
        for code in codes[1:]:
            new = len(mode) + len(columns["mode"])
            if at == node:
                right[node] = new
            else:
                columns["right"][-1] = new
            for name, value in (
                ("mode", EQUAL), ("feature", tree.feature[node]), ("threshold", code),
                ("left", tree.left[node]), ("right", tree.right[node]), ("missing", False),
            ):  # fmt: skip
                columns[name].append(value)
            at = new
    extra = len(columns["mode"])
    return replace(
        tree,
        mode=np.concatenate([mode, np.array(columns["mode"], np.int64)]),
        feature=np.concatenate([tree.feature, np.array(columns["feature"], np.int64)]),
        threshold=np.concatenate([threshold, np.array(columns["threshold"], np.float64)]),
        left=np.concatenate([tree.left, np.array(columns["left"], np.int64)]),
        right=np.concatenate([right, np.array(columns["right"], np.int64)]),
        missing_left=np.concatenate([tree.missing_left, np.zeros(extra, np.bool_)]),
        values=np.concatenate([tree.values, np.zeros((extra, tree.values.shape[1]))]),
    )

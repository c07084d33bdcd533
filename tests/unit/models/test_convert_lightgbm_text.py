"""Reading LightGBM's text: every damage is found before native code sees it."""

from __future__ import annotations

import numpy as np
import pytest

from models.convert.lightgbm_text import parse_text_model
from models.convert.trees import floor_float32
from models.errors import ConversionRefused

MODEL = """tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=regression
feature_names=a b
feature_infos=[0:1] [0:1]
tree_sizes=1 1

Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
threshold=0.1 -0.5
decision_type=2 8
left_child=1 -1
right_child=-2 -3
leaf_value=1 2 3
is_linear=0
shrinkage=1


Tree=1
num_leaves=1
num_cat=0
leaf_value=0.5
shrinkage=1


end of trees

pandas_categorical:null
"""


def test_the_tree_is_read_as_it_is_written():
    """Children, thresholds and missing directions come out as LightGBM means them."""
    model = parse_text_model(MODEL)
    first, second = model.forest.trees
    assert first.mode.tolist() == [1, 1, 0, 0, 0]
    assert first.left[:2].tolist() == [1, 2]
    assert first.right[:2].tolist() == [3, 4]
    assert first.missing_left[:2].tolist() == [True, False]
    assert first.values[2:, 0].tolist() == [1, 2, 3]
    assert second.values.tolist() == [[0.5]]
    assert (model.objective, model.features) == (("regression",), ("a", "b"))


def test_linear_trees_are_told():
    """Trees with linear models in their leaves are read, and said to be such."""
    assert not parse_text_model(MODEL).is_linear
    assert parse_text_model(MODEL.replace("is_linear=0", "is_linear=1")).is_linear


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("end of trees", "", "cut off"),
        ("max_feature_idx=1", "", "max_feature_idx"),
        ("max_feature_idx=1", "max_feature_idx=7", "2 feature_names"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=0", "num_tree_per_iteration 0"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=3", "no multiple of 3"),
        ("tree_sizes=1 1", "tree_sizes=1 1 1", "3 trees are declared, 2 are there"),
        ("split_feature=0 1", "split_feature=0 9", "split_feature 9 of 2"),
        ("split_feature=0 1", "split_feature=0", "split_feature has 1 values, 2"),
        ("threshold=0.1 -0.5", "threshold=0.1 x", "tree 0 is damaged"),
        ("left_child=1 -1", "left_child=0 -1", "before its parent"),
        ("left_child=1 -1", "left_child=5 -1", "does not exist"),
        ("left_child=1 -1", "left_child=-3 -1", "no parent or several"),
        ("num_leaves=3", "num_leaves=-3", "leaf_value has 3 values, -3"),
        ("num_leaves=3", "num_leaves=900000000000", "leaf_value has 3 values"),
        ("decision_type=2 8", "decision_type=1 8", "tree 0 is damaged"),
        ("pandas_categorical:null", "pandas_categorical:[[1", "pandas_categorical is damaged"),
    ],
)
def test_damage_is_named(old, new, reason):
    """Every kind of damage is refused with where it is."""
    assert old in MODEL
    with pytest.raises(ConversionRefused, match=reason):
        parse_text_model(MODEL.replace(old, new, 1))


def test_any_cut_is_refused():
    """A text that was cut off anywhere before its last tree ends is refused."""
    end = MODEL.index("end of trees")
    for length in range(0, end, 7):
        with pytest.raises(ConversionRefused):
            parse_text_model(MODEL[:length])


def test_thresholds_are_rounded_down_to_float32():
    """For every float32 near a threshold, the comparison says what the double one says."""
    rng = np.random.default_rng(3)
    thresholds = np.concatenate([rng.normal(size=500), [0.1, -0.1, 1e300, -1e300, np.inf, 0.0]])
    rounded = floor_float32(thresholds)
    with np.errstate(over="ignore"):
        nearest = thresholds.astype(np.float32)
    for x in (
        nearest,
        np.nextafter(nearest, np.float32(np.inf)),
        np.nextafter(nearest, np.float32(-np.inf)),
    ):
        assert ((x <= thresholds) == (x <= rounded.astype(np.float32))).all()

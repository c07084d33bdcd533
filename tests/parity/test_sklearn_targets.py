"""scikit-learn's models of several labels a row, or of several targets, answer as natively."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import (
    ensemble,
    linear_model,
    model_selection,
    multiclass,
    multioutput,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.pipeline import make_pipeline

from models.convert.sklearn_targets import several_outputs
from models.convert.sklearn_trees import tree_model
from models.errors import ConversionRefused

from .conftest import Served, hard_rows, worst

pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5
LOGISTIC = linear_model.LogisticRegression()
TREE = tree.DecisionTreeClassifier(max_depth=4, random_state=0)
FOREST = ensemble.RandomForestClassifier(6, random_state=0)
SEVERAL = {
    "one each": multioutput.MultiOutputClassifier(LOGISTIC),
    "one each, trees": multioutput.MultiOutputClassifier(TREE),
    "one each, no probabilities": multioutput.MultiOutputClassifier(svm.LinearSVC()),
    "one each, scaled": make_pipeline(
        preprocessing.StandardScaler(), multioutput.MultiOutputClassifier(LOGISTIC)
    ),
    "chain": multioutput.ClassifierChain(LOGISTIC, order=[2, 0, 1]),
    "chain of trees": multioutput.ClassifierChain(TREE),
    "chain of probabilities": multioutput.ClassifierChain(LOGISTIC, chain_method="predict_proba"),
    "chain of scores": multioutput.ClassifierChain(svm.LinearSVC(), order=[1, 2, 0]),
    "one against rest": multiclass.OneVsRestClassifier(LOGISTIC),
    "one against rest, scores": multiclass.OneVsRestClassifier(svm.LinearSVC()),
    "tree": TREE,
    "forest": FOREST,
    "extra trees": ensemble.ExtraTreesClassifier(6, random_state=0),
    "neighbours": neighbors.KNeighborsClassifier(3),
    "network": neural_network.MLPClassifier((8,), max_iter=40, random_state=0),
    "ridge": linear_model.RidgeClassifier(),
    "search": model_selection.GridSearchCV(FOREST, {"max_depth": [3]}, cv=2),
}


def table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(300, 4))
    shares = np.stack([x[:, 0] + x[:, 1], x[:, 2], x[:, 3] * x[:, 0] + 0.3], axis=1)
    return x, (shares > 0).astype(int)


def rows_of(model: Any, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    trees = tree_model(model)
    if trees is None:
        return np.concatenate([x, rng.normal(size=(1000, 4)) * 2]).astype(np.float32)
    rows = hard_rows(np.concatenate(trees.thresholds(4)), x, rng)
    return rows[np.isfinite(rows).all(axis=1)]


def check(model: Any, serve: Any, rows: np.ndarray) -> Served:
    """Every output equals the method that it names; labels may differ where a half is near."""
    served = serve(model)
    got = served({"input": rows})
    doubles = rows.astype(np.float64)
    is_near = np.zeros(got["label"].shape, dtype=bool)
    for spec in served.signature.outputs[1:]:
        native = getattr(model, spec.method)(doubles)
        if isinstance(native, list):
            target = int(spec.name.removeprefix("probabilities_"))
            native = native[target]
            top = np.sort(native, axis=1)
            is_near[:, target] = top[:, -1] - top[:, -2] <= 2 * TOLERANCE
        else:
            is_near |= np.abs(native - (0.5 if spec.name == "probabilities" else 0)) <= TOLERANCE
        assert got[spec.name].shape == native.shape
        assert worst(got[spec.name], native) <= TOLERANCE
    assert ((got["label"] == model.predict(doubles)) | is_near).all()
    return served


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_each_label_is_a_column(serve, rng, name):
    """Of labels that are there or not, whatever the model, in the order of training."""
    x, labels = table(rng)
    model = SEVERAL[name].fit(x, labels)
    served = check(model, serve, rows_of(model, x, rng))
    label = served.signature.outputs[0]
    assert (label.name, label.datatype, label.shape) == ("label", "INT64", (-1, 3))


@pytest.mark.parametrize("name", ["one each", "tree", "forest", "neighbours"])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_targets_have_classes_of_their_own(serve, rng, name, kind):
    """Two classes of one and three of another, each with its table of probabilities."""
    x, labels = table(rng)
    words = [np.array([7, -2]), np.array([5, 3, 9])]
    if kind == "texts":
        words = [np.array(["no", "vérité"]), np.array(["b", "a", "日本"])]
    targets = np.stack([words[0][labels[:, 0]], words[1][labels[:, 1] + labels[:, 2]]], axis=1)
    model = SEVERAL[name].fit(x, targets)
    rows = rows_of(model, x, rng)
    served = check(model, serve, rows)
    tables = {spec.name: spec.labels for spec in served.signature.outputs[1:]}
    expected = [tuple(sorted(word.tolist())) for word in words]
    assert tables == {"probabilities_0": expected[0], "probabilities_1": expected[1]}


def test_what_cannot_be_one_output_is_refused_with_the_reason(serve, rng):
    """Labels of two kinds, a chain of three classes, and a stack."""
    x, labels = table(rng)
    kinds = [np.array([0, 1]), np.array(["a", "b"])]
    with pytest.raises(ConversionRefused, match="targets with texts and targets with numbers"):
        several_outputs(TREE, kinds, np.array([[0, "a"]], dtype=object), lambda _: None)
    more = np.stack([labels[:, 0], labels[:, 1] + labels[:, 2]], axis=1)
    with pytest.raises(ConversionRefused, match="ClassifierChain: a target with the classes"):
        serve(multioutput.ClassifierChain(svm.LinearSVC()).fit(x, more))
    stack = ensemble.StackingClassifier([("t", TREE)], neighbors.KNeighborsClassifier(), cv=2)
    with pytest.raises(ConversionRefused, match="StackingClassifier: several labels"):
        serve(stack.fit(x, labels))


def test_ties_of_several_labels_are_judged_label_by_label():
    """One label in two minds excuses no other label of the row."""
    from models.parity import compare

    inputs = {"input": np.zeros((2, 1), np.float32)}
    native = {
        "label": np.array([[1, 0], [1, 1]]),
        "probabilities": np.array([[0.5 + 1e-7, 0.2], [0.9, 0.8]]),
    }
    other = native | {"label": np.array([[0, 0], [1, 0]])}
    parity = compare(lambda _: other, lambda _: native, inputs)
    assert (parity.ties, parity.label_disagreements, parity.rows_differing) == (1, 1, 1)
    tables = {
        "label": native["label"],
        "probabilities_0": np.array([[0.5, 0.5], [0.1, 0.9]]),
        "probabilities_1": np.array([[0.8, 0.2], [0.2, 0.8]]),
    }
    parity = compare(lambda _: tables | {"label": other["label"]}, lambda _: tables, inputs)
    assert (parity.ties, parity.label_disagreements, parity.rows_differing) == (1, 1, 1)

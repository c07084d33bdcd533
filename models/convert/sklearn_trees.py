"""scikit-learn's trees for skl2onnx, branch for branch as native.

skl2onnx rounds thresholds to the nearest float32 and forgets where missing values go; these
converters take its place for every tree estimator, also inside pipelines and meta-estimators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from onnx import TensorProto

from models.convert.graph import class_labels, label_array
from models.convert.sklearn_writer import Writer
from models.convert.tree_sets import with_sets
from models.convert.trees import (
    LEAF,
    LESS_OR_EQUAL,
    ML_DOMAIN,
    ML_OPSET,
    Floats,
    Forest,
    Precision,
    Tree,
    ensemble_node,
)
from models.errors import ConversionRefused

Link: TypeAlias = Literal["identity", "exp", "sigmoid", "softmax"]
Converter: TypeAlias = Callable[[Any, Any, Any], None]


@dataclass(frozen=True, slots=True)
class Encoding:
    """Columns that become codes and come first: ``(column, categories in order of code)``.

    ``plain``: the columns that follow as they are.
    """

    coded: tuple[tuple[int, tuple[Any, ...]], ...]
    plain: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeModel:
    """A fitted tree estimator: its trees, what turns their sum into the answer, its classes.

    ``is_float32``: the native model casts its input to float32 before it compares.
    ``encoding``: what it does to its columns before that. ``slope``: of the sigmoid.
    ``targets``: the classes of each of several targets, whose shares lie side by side.
    """

    forest: Forest
    link: Link
    classes: tuple[str | int, ...] | None
    is_float32: bool
    encoding: Encoding | None = None
    slope: float = 1.0
    targets: tuple[tuple[str | int, ...], ...] = ()

    def thresholds(self, features: int) -> list[Floats]:
        """Return the distinct thresholds of each feature as the caller orders them.

        A coded feature has none of its own.
        """
        found = self.forest.thresholds(features)
        if self.encoding is None:
            return found
        plain = self.encoding.plain
        ordered = [np.empty(0) for _ in range(features)]
        for place, values in zip(plain, found[features - len(plain) :], strict=True):
            ordered[place] = values
        return ordered


def converters() -> dict[type, Converter]:
    """Return the converters for ``skl2onnx.convert_sklearn(custom_conversion_functions=...)``."""
    return dict.fromkeys(_readers(), _convert)


def tree_model(estimator: Any) -> TreeModel | None:
    """Return the trees of an estimator, or None where it is no tree model."""
    reader = _readers().get(type(estimator))
    return reader(estimator) if reader is not None else None


def _readers() -> dict[type, Callable[[Any], TreeModel]]:
    from sklearn import ensemble, tree

    return {
        tree.DecisionTreeClassifier: _decision_tree,
        tree.DecisionTreeRegressor: _decision_tree,
        tree.ExtraTreeClassifier: _decision_tree,
        tree.ExtraTreeRegressor: _decision_tree,
        ensemble.RandomForestClassifier: _random_forest,
        ensemble.RandomForestRegressor: _random_forest,
        ensemble.ExtraTreesClassifier: _random_forest,
        ensemble.ExtraTreesRegressor: _random_forest,
        ensemble.GradientBoostingClassifier: _gradient_boosting,
        ensemble.GradientBoostingRegressor: _gradient_boosting,
        ensemble.HistGradientBoostingClassifier: _hist_gradient_boosting,
        ensemble.HistGradientBoostingRegressor: _hist_gradient_boosting,
    }


def _decision_tree(estimator: Any) -> TreeModel:
    return _averaged([estimator], estimator)


def _random_forest(estimator: Any) -> TreeModel:
    return _averaged(list(estimator.estimators_), estimator)


def _averaged(trees: list[Any], estimator: Any) -> TreeModel:
    classes = None
    outputs = int(estimator.n_outputs_)
    if hasattr(estimator, "classes_"):
        if outputs != 1:
            return _several_targets(trees, estimator)
        classes = _classes(estimator)
    read = []
    for fitted in trees:
        values = np.asarray(fitted.tree_.value, dtype=np.float64)
        values = values[:, :, 0] if classes is None else values[:, 0, :]
        if classes is not None:
            values = _shares(values)
        read.append(_tree(fitted, values / len(trees)))
    targets = len(classes) if classes is not None else outputs
    return TreeModel(Forest(tuple(read), (0.0,) * targets), "identity", classes, is_float32=True)


def _several_targets(trees: list[Any], estimator: Any) -> TreeModel:
    targets = tuple(class_labels(classes) for classes in estimator.classes_)
    read = []
    for fitted in trees:
        values = np.asarray(fitted.tree_.value, dtype=np.float64)
        shares = [_shares(values[:, t, : len(labels)]) for t, labels in enumerate(targets)]
        read.append(_tree(fitted, np.concatenate(shares, axis=1) / len(trees)))
    forest = Forest(tuple(read), (0.0,) * sum(map(len, targets)))
    return TreeModel(forest, "identity", None, is_float32=True, targets=targets)


def _shares(values: Floats) -> Floats:
    sums = values.sum(axis=1, keepdims=True)
    return values / np.where(sums == 0.0, 1.0, sums)


def isolation_forest(estimator: Any) -> tuple[Forest, float]:
    """Return the forest whose sum is the depth of a row, and the length that depths go by."""
    trees = []
    for fitted, features, lengths, average in zip(
        estimator.estimators_,
        estimator.estimators_features_,
        estimator._decision_path_lengths,  # noqa: SLF001 (there is no public way to the depths)
        estimator._average_path_length_per_tree,  # noqa: SLF001
        strict=True,
    ):
        depths = np.asarray(lengths, np.float64) + np.asarray(average, np.float64) - 1.0
        tree = _tree(fitted, depths[:, None])
        chosen = np.where(tree.mode == LEAF, 0, np.asarray(features, np.int64)[tree.feature])
        trees.append(replace(tree, feature=chosen))
    unit = float(_average_path_length(estimator._max_samples))  # noqa: SLF001
    return Forest(tuple(trees), (0.0,)), len(trees) * unit


def _average_path_length(samples: int) -> float:
    from sklearn.ensemble._iforest import _average_path_length as average

    return float(average([samples])[0])


def _gradient_boosting(estimator: Any) -> TreeModel:
    from sklearn.dummy import DummyClassifier, DummyRegressor

    init = estimator.init_
    if not isinstance(init, DummyClassifier | DummyRegressor) and init != "zero":
        raise ConversionRefused(
            f"{type(estimator).__name__}: an own init estimator ({type(init).__name__}) is not "
            "supported"
        )
    stages = estimator.estimators_
    targets = stages.shape[1]
    # The constant of the dummy estimator, in the space of the loss: only sklearn knows how.
    row = np.zeros((1, estimator.n_features_in_), dtype=np.float32)
    base = np.asarray(estimator._raw_predict_init(row), dtype=np.float64)  # noqa: SLF001
    trees = tuple(
        _tree(
            stages[i, k],
            stages[i, k].tree_.value[:, 0, :].astype(np.float64) * estimator.learning_rate,
            k,
        )
        for i in range(stages.shape[0])
        for k in range(targets)
    )
    classes = _classes(estimator)
    forest = Forest(trees, tuple(base.ravel().tolist()))
    if classes is None:
        return TreeModel(forest, "identity", None, is_float32=True)
    link: Link = "softmax" if targets > 1 else "sigmoid"
    slope = 2.0 if estimator.loss == "exponential" else 1.0
    return TreeModel(forest, link, classes, is_float32=True, slope=slope)


def _hist_gradient_boosting(estimator: Any) -> TreeModel:
    trees = [
        _binned_tree(predictor, target)
        for stage in estimator._predictors  # noqa: SLF001 (there is no public way to the trees)
        for target, predictor in enumerate(stage)
    ]
    base = np.asarray(estimator._baseline_prediction, dtype=np.float64).ravel()  # noqa: SLF001
    forest = Forest(tuple(trees), tuple(base.tolist()))
    classes = _classes(estimator)
    if classes is not None:
        link: Link = "softmax" if forest.target_count > 1 else "sigmoid"
    else:
        link = "exp" if estimator.loss in ("gamma", "poisson") else "identity"
    return TreeModel(forest, link, classes, is_float32=False, encoding=_encoding(estimator))


def _binned_tree(predictor: Any, target: int) -> Tree:
    nodes = predictor.nodes
    is_leaf = nodes["is_leaf"].astype(bool)
    tree = Tree(
        mode=np.where(is_leaf, LEAF, LESS_OR_EQUAL),
        feature=np.where(is_leaf, 0, nodes["feature_idx"]).astype(np.int64),
        threshold=np.where(is_leaf, 0.0, nodes["num_threshold"]),
        left=np.where(is_leaf, 0, nodes["left"]).astype(np.int64),
        right=np.where(is_leaf, 0, nodes["right"]).astype(np.int64),
        missing_left=nodes["missing_go_to_left"].astype(bool) & ~is_leaf,
        values=nodes["value"].astype(np.float64)[:, None],
        first_target=target,
    )
    sets = {}
    for node in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~is_leaf):
        words = predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]
        bits = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
        sets[int(node)] = np.flatnonzero(bits).tolist()
    return with_sets(tree, sets) if sets else tree


def _encoding(estimator: Any) -> Encoding | None:
    is_coded = getattr(estimator, "is_categorical_", None)
    if is_coded is None:
        return None
    encoder = estimator._preprocessor.named_transformers_["encoder"]  # noqa: SLF001
    coded = []
    for place, values in zip(np.flatnonzero(is_coded), encoder.categories_, strict=True):
        # A missing value of training has the last code, but is sent on as missing.
        known = tuple(v for v in values.tolist() if v is not None and v == v)
        coded.append((int(place), known))
    return Encoding(tuple(coded), tuple(np.flatnonzero(~np.asarray(is_coded)).tolist()))


def _tree(fitted: Any, values: Floats, first_target: int = 0) -> Tree:
    nodes = fitted.tree_.__getstate__()["nodes"]
    is_leaf = nodes["left_child"] < 0
    missing = np.zeros(len(nodes), dtype=bool)
    if "missing_go_to_left" in nodes.dtype.names:
        missing = nodes["missing_go_to_left"].astype(bool) & ~is_leaf
    return Tree(
        mode=np.where(is_leaf, LEAF, LESS_OR_EQUAL),
        feature=np.where(is_leaf, 0, nodes["feature"]),
        threshold=np.where(is_leaf, 0.0, nodes["threshold"]),
        left=np.where(is_leaf, 0, nodes["left_child"]),
        right=np.where(is_leaf, 0, nodes["right_child"]),
        missing_left=missing,
        values=values,
        first_target=first_target,
    )


def _classes(estimator: Any) -> tuple[str | int, ...] | None:
    classes = getattr(estimator, "classes_", None)
    return class_labels(classes) if classes is not None else None


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Write one tree estimator, called by skl2onnx."""
    from skl2onnx.common.data_types import DoubleTensorType, guess_proto_type

    model = tree_model(operator.raw_operator)
    if model is None or model.encoding is not None or model.targets:
        raise ConversionRefused(
            f"{type(operator.raw_operator).__name__}: categories or several targets in here"
        )
    source = operator.inputs[0]
    precision: Precision = "float64" if isinstance(source.type, DoubleTensorType) else "float32"
    write = Writer(scope, container)
    matrix = source.full_name
    if precision == "float32" or model.is_float32:
        matrix = write.node("Cast", matrix, to=TensorProto.FLOAT)
    if precision == "float64":
        matrix = write.node("Cast", matrix, to=TensorProto.DOUBLE)
    raw = scope.get_unique_variable_name("raw")
    container.nodes.append(ensemble_node(model.forest, precision, matrix, raw))
    container.node_domain_version_pair_sets.add((ML_DOMAIN, ML_OPSET))
    if model.classes is None:
        result = write.node("Exp", raw) if model.link == "exp" else raw
        output = operator.outputs[0]
        write.node("Cast", result, output=output.full_name, to=guess_proto_type(output.type))
        return
    scores = _probabilities(write, raw, model)
    label, probabilities = operator.outputs[:2]
    index = write.node("ArgMax", scores, axis=1, keepdims=0)
    classes = write.constant(label_array(model.classes))
    write.node("Gather", classes, index, output=label.full_name, axis=0)
    write.node(
        "Cast", scores, output=probabilities.full_name, to=guess_proto_type(probabilities.type)
    )


def _probabilities(write: Writer, raw: str, model: TreeModel) -> str:
    if model.link == "softmax":
        return write.node("Softmax", raw, axis=1)
    if model.link == "sigmoid":
        margin = write.node("Mul", raw, write.constant(np.array(model.slope, np.float32)))
        negative = write.node("Sigmoid", write.node("Neg", margin))
        return write.node("Concat", negative, write.node("Sigmoid", margin), axis=1)
    return raw

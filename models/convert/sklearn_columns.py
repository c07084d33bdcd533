"""What a fitted scikit-learn pipeline expects in each column: number or text, missing or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from models.convert.vectorizers import is_vectorizer, refuse_own_vectorizer
from models.errors import ConversionRefused

# Stands for a missing text inside the graph, and in the signature as ``missing``.
SENTINEL: Final = "__missing__"
_NOTHING: Final = "__nothing that any request can hold__\0"
# Estimators that hand their table on to those inside: to several, or to one.
_LISTS: Final = frozenset(
    {"AdaBoostClassifier", "AdaBoostRegressor", "MultiOutputClassifier",
     "MultiOutputRegressor", "OneVsOneClassifier", "OneVsRestClassifier",
     "StackingClassifier", "StackingRegressor", "VotingClassifier", "VotingRegressor"}
)  # fmt: skip
_WRAPPERS: Final = frozenset(
    {"GridSearchCV", "RandomizedSearchCV", "TransformedTargetRegressor",
     "TunedThresholdClassifierCV"}
)  # fmt: skip
_TREE_NAMES: Final = (
    "TreeClassifier", "TreeRegressor", "TreesClassifier", "TreesRegressor", "ForestClassifier",
    "ForestRegressor", "BoostingClassifier", "BoostingRegressor", "IsolationForest",
)  # fmt: skip
_BOOSTERS: Final = ("LGBM", "XGB", "CatBoost")
_JUMPS: Final = frozenset(
    {
        "Binarizer",
        "ClassifierChain",
        "KBinsDiscretizer",
        "OneHotEncoder",
        "OrdinalEncoder",
        "QuantileTransformer",
        "TargetEncoder",
    }
)
_OF_OBJECTS: Final = frozenset({"FeatureHasher", "DictVectorizer"})
# The served input of a model that takes a list of texts, not a table.
TEXT_INPUT: Final = "text"
_FROZEN: Final = frozenset({"FrozenEstimator", "FixedThresholdClassifier"})


@dataclass(slots=True)
class Column:
    """One column as the transformers know it.

    ``kind``: "number", "code" (whole numbers that are categories) or "text".
    ``center``, ``scale``: where the numbers of training lay, as far as a transformer tells.
    ``special``: numbers that the model treats one by one, such as categories.
    ``none_is_missing``: what is missing was None in training, which is not NaN: an imputer of this
    column looks for it, or an encoder has it as a category. ``is_null_unclear``: an encoder has
    both. ``imputers``: those that the column passes. ``is_positive``: a transformer takes numbers
    above zero only. ``vectorizers``: those that count the terms of its texts; ``is_plain``:
    something else sees it too.
    """

    name: str
    index: int
    kind: str = "number"
    categories: list[str | int] = field(default_factory=list)
    special: list[float] = field(default_factory=list)
    center: float = 0.0
    scale: float = 1.0
    is_imputed: bool = False
    none_is_missing: bool = False
    is_null_unclear: bool = False
    imputers: list[Any] = field(default_factory=list)
    is_used: bool = False
    vectorizers: list[Any] = field(default_factory=list)
    is_plain: bool = False
    is_positive: bool = False


def fitted_columns(estimator: Any) -> tuple[list[Column], bool]:
    """Return the columns of the training table and whether they had names."""
    _refuse_objects(estimator)
    if takes_texts(estimator):
        columns = [Column(TEXT_INPUT, 0, "text")]
        _visit(estimator, columns)
        return columns, False
    names = getattr(estimator, "feature_names_in_", None)
    count = getattr(estimator, "n_features_in_", None)
    if names is None and count is None:
        raise ConversionRefused(
            f"{type(estimator).__name__} does not say how many features it takes: is it fitted?"
        )
    texts = [str(name) for name in names] if names is not None else None
    columns = [
        Column(texts[i] if texts else f"column_{i}", i)
        for i in range(len(texts) if texts is not None else int(count or 0))
    ]
    _visit(estimator, columns)
    return columns, texts is not None


def has_jumps(estimator: Any) -> bool:
    """Return whether something inside compares numbers that were computed or must be equal.

    Rounding those to float32 would change more than the last digits: a branch, or a category.
    Trees that see the table itself are no such case, for their thresholds are rounded to suit.
    """
    names = {type(part).__name__ for part in parts_of(estimator)}
    is_computed = any(name == "Pipeline" or name.startswith("Stacking") for name in names)
    has_trees = any(name.endswith(_TREE_NAMES) or name.startswith(_BOOSTERS) for name in names)
    return bool(names & _JUMPS) or (is_computed and has_trees)


def _refuse_objects(estimator: Any) -> None:
    for part in parts_of(estimator):
        refuse_own_vectorizer(part)
        name = type(part).__name__
        if name in _OF_OBJECTS:
            raise ConversionRefused(
                f"{name}: it takes dictionaries or lists of any length, which no row of a request "
                "holds: compute its columns before the model, and push what comes after it"
            )


def takes_texts(estimator: Any) -> bool:
    """Return whether a model takes a list of texts, not a table."""
    if is_vectorizer(estimator):
        return True
    kind = type(estimator).__name__
    if kind == "Pipeline":
        steps = [step for _, step in estimator.steps if not isinstance(step, str | None)]
        return bool(steps) and takes_texts(steps[0])
    if kind == "FeatureUnion":
        return any(takes_texts(part) for _, part in estimator.transformer_list)
    return any(takes_texts(inner) for inner, _ in same_table(estimator))


def sees_columns(estimator: Any) -> bool:
    """Return whether anything inside chooses columns of the table by name or place."""
    kind = type(estimator).__name__
    if kind == "ColumnTransformer":
        return True
    if kind == "Pipeline":
        return sees_columns(estimator.steps[0][1])
    return any(sees_columns(inner) for inner, _ in same_table(estimator))


def same_table(estimator: Any) -> list[tuple[Any, Sequence[int] | None]]:
    """Return the fitted estimators inside that see the same table, with the columns that they see.

    None for all columns.
    """
    kind = type(estimator).__name__
    if kind.startswith("Bagging"):
        pairs = zip(estimator.estimators_, estimator.estimators_features_, strict=True)
        width = estimator.n_features_in_
        return [
            (inner, None if list(chosen) == list(range(width)) else [int(i) for i in chosen])
            for inner, chosen in pairs
        ]
    if kind in _LISTS:
        return [(inner, None) for inner in estimator.estimators_ if not isinstance(inner, str)]
    if kind == "CalibratedClassifierCV":
        return [(member.estimator, None) for member in estimator.calibrated_classifiers_]
    for name in ("best_estimator_", "regressor_", "estimator_"):
        inner = getattr(estimator, name, None)
        if kind in _WRAPPERS and inner is not None:
            return [(inner, None)]
    if kind in _FROZEN:
        return [(estimator.estimator, None)]
    return []


def final_estimator(estimator: Any) -> Any:
    """Return the estimator that predicts, at the end of any pipelines."""
    while type(estimator).__name__ == "Pipeline":
        estimator = estimator.steps[-1][1]
    return estimator


def replace_missing_texts(copied: Any, estimator: Any, columns: Sequence[Column]) -> None:
    """Make the copy of a pipeline see SENTINEL where the original sees a missing text."""
    idle = _imputers_that_pass_none_on(columns)
    for part, original in zip(parts_of(copied), parts_of(estimator), strict=True):
        if _is_text_imputer(part) and _is_missing(part.missing_values):
            part.missing_values = _NOTHING if id(original) in idle else SENTINEL
        if hasattr(part, "categories_"):
            part.categories_ = [_with_sentinel(values) for values in part.categories_]


def _imputers_that_pass_none_on(columns: Sequence[Column]) -> set[int]:
    """Return the ids of imputers that look for NaN in columns where None is what is missing."""
    of_none, of_others = (
        {
            id(imputer)
            for column in columns
            if column.none_is_missing is is_none
            for imputer in column.imputers
            if imputer.missing_values is not None
        }
        for is_none in (True, False)
    )
    return of_none - of_others


def _with_sentinel(values: Any) -> Any:
    if values.dtype != object or not any(_is_missing(v) for v in values):
        return values
    return np.array([SENTINEL if _is_missing(v) else v for v in values], dtype=object)


def parts_of(estimator: Any) -> Iterator[Any]:
    """Yield every fitted transformer and estimator inside, however deep."""
    yield estimator
    if type(estimator).__name__ == "Pipeline":
        children = [step for _, step in estimator.steps]
    elif type(estimator).__name__ == "ColumnTransformer":
        children = [transformer for _, transformer, _ in estimator.transformers_]
    elif type(estimator).__name__ == "FeatureUnion":
        children = [transformer for _, transformer in estimator.transformer_list]
    else:
        children = [inner for inner, _ in same_table(estimator)]
        children += [getattr(estimator, "final_estimator_", "none")]
    for child in children:
        if not isinstance(child, str):
            yield from parts_of(child)


def _visit(part: Any, columns: Sequence[Column]) -> bool:
    """Note in ``columns`` what ``part`` knows; return whether its outputs are the same columns."""
    kind = type(part).__name__
    if isinstance(part, str):
        is_kept = part == "passthrough"
        for column in columns:
            column.is_used |= is_kept
            column.is_plain |= is_kept
        return is_kept
    if is_vectorizer(part):
        for column in columns:
            column.kind, column.is_used = "text", True
            column.vectorizers.append(part)
        return False
    if kind == "Pipeline":
        return all(_visit(step, columns) for _, step in part.steps)
    if kind == "ColumnTransformer":
        for _, transformer, chosen in part.transformers_:
            _visit(transformer, _chosen(columns, chosen))
        return False
    if kind == "FeatureUnion":
        for _, transformer in part.transformer_list:
            _visit(transformer, columns)
        return False
    if inside := same_table(part):
        for inner, chosen in inside:
            _visit(inner, columns if chosen is None else [columns[i] for i in chosen])
        return False
    for column in columns:
        column.is_used = column.is_plain = True
    if getattr(part, "is_categorical_", None) is not None:
        _note_codes(part, columns)
        return False
    if kind == "SimpleImputer":
        _note_imputer(part, columns)
        return True
    if kind == "KBinsDiscretizer":
        for column, edges in zip(columns, part.bin_edges_, strict=False):
            _note_edges(column, edges)
        return False
    if kind == "QuantileTransformer":
        for column, values in zip(columns, part.quantiles_.T, strict=False):
            _note_edges(column, np.unique(values))
        return True
    if kind == "PowerTransformer":
        for column in columns:
            column.is_positive |= part.method == "box-cox"
        return False
    if kind == "Binarizer":
        for column in columns:
            _note_edges(column, [part.threshold])
        return False
    if hasattr(part, "categories_"):
        for column, values in zip(columns, part.categories_, strict=False):
            _note_categories(column, values)
        return False
    return _note_scaler(part, columns)


def _chosen(columns: Sequence[Column], chosen: Any) -> list[Column]:
    return [columns[place] for place in places_of([column.name for column in columns], chosen)]


def places_of(names: Sequence[str], chosen: Any) -> list[int]:
    """Return the places of columns as a ColumnTransformer chooses them: by name, place or flag."""
    every = range(len(names))
    if isinstance(chosen, slice):
        if isinstance(chosen.start, str) or isinstance(chosen.stop, str):
            start = names.index(chosen.start) if chosen.start is not None else None
            stop = names.index(chosen.stop) + 1 if chosen.stop is not None else None
            chosen = slice(start, stop, chosen.step)
        return list(every[chosen])
    picked = [chosen] if isinstance(chosen, str | int) else list(chosen)
    if picked and all(isinstance(item, bool | np.bool_) for item in picked):
        return [place for place, take in zip(every, picked, strict=True) if take]
    by_name = {name: place for place, name in enumerate(names)}
    return [by_name[item] if isinstance(item, str) else every[int(item)] for item in picked]


def _note_imputer(imputer: Any, columns: Sequence[Column]) -> None:
    is_text = _is_text_imputer(imputer)
    for column, value in zip(columns, imputer.statistics_, strict=False):
        column.is_imputed = True
        column.imputers.append(imputer)
        column.none_is_missing |= imputer.missing_values is None
        if is_text:
            column.kind = "text"
            if isinstance(value, str) and value not in column.categories:
                column.categories.append(value)
        elif isinstance(value, int | float) and np.isfinite(value):
            column.center = float(value)
            column.scale = max(1.0, abs(float(value)))


def _note_categories(column: Column, values: Any) -> None:
    known = [value for value in values if not _is_missing(value)]
    has_none = any(value is None for value in values)
    column.none_is_missing |= has_none
    column.is_null_unclear |= has_none and any(value != value for value in values)
    if all(isinstance(value, str) for value in known):
        column.kind = "text"
        column.categories = [str(value) for value in known]
    elif values.dtype.kind in "iu":
        column.kind = "code"
        column.categories = [int(value) for value in known]
    elif values.dtype.kind == "f":
        column.kind = "number"
        column.special.extend(float(value) for value in known)
    else:
        raise ConversionRefused(
            f"column {column.name!r}: categories of mixed or unknown kind ({values.dtype}) are "
            "not supported: use text or whole numbers"
        )


def _note_edges(column: Column, edges: Any) -> None:
    """Note the numbers at which something changes, and those beside them as float32 has them."""
    cast = np.asarray(edges, np.float64).astype(np.float32)
    for values in (cast, np.nextafter(cast, -np.inf), np.nextafter(cast, np.inf)):
        column.special.extend(float(value) for value in values[np.isfinite(values)])


def _note_codes(part: Any, columns: Sequence[Column]) -> None:
    """Note the categories of a HistGradientBoosting model that codes columns by itself."""
    encoder = part._preprocessor.named_transformers_["encoder"]  # noqa: SLF001
    coded = np.flatnonzero(part.is_categorical_).tolist()
    for place, values in zip(coded, encoder.categories_, strict=True):
        if values.dtype.kind in "iuf":
            columns[place].special = [float(v) for v in values if not _is_missing(float(v))]
        else:
            _note_categories(columns[place], values)


def _note_scaler(part: Any, columns: Sequence[Column]) -> bool:
    lowest, highest = getattr(part, "data_min_", None), getattr(part, "data_max_", None)
    centers, scales = getattr(part, "mean_", None), getattr(part, "scale_", None)
    if lowest is not None and highest is not None:
        centers, scales = (lowest + highest) / 2, (highest - lowest) / 2
    if centers is None or scales is None or len(centers) != len(columns):
        return False
    for column, center, scale in zip(columns, centers, scales, strict=True):
        column.center, column.scale = float(center), float(scale) or 1.0
    return True


def _is_text_imputer(part: Any) -> bool:
    return (
        type(part).__name__ == "SimpleImputer"
        and getattr(part, "_fit_dtype", np.dtype(float)).kind in "OUS"
    )


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and value != value)

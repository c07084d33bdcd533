"""Ensembles of other estimators: bagging, voting, stacking, boosting by weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.graph import class_labels
from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.errors import ConversionRefused


def _members(compiler: Compiler, estimator: Any, source: Source) -> list[Predicted]:
    members = [e for e in estimator.estimators_ if not isinstance(e, str)]
    return [compiler.predict(member, source) for member in members]


def _voting_classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    count = len(estimator.classes_)
    members = _members(compiler, estimator, source)
    weights = estimator._weights_not_none  # noqa: SLF001 (without the weights of dropped ones)
    if estimator.voting == "soft":
        parts = [_needed(member.probabilities, estimator) for member in members]
        probabilities = compiler.mean(parts, weights)
        return Predicted(compiler.best(probabilities), probabilities=probabilities)
    votes = [compiler.one_hot(_needed(m.index, estimator), count) for m in members]
    shares = weights if weights is not None else [1.0] * len(votes)
    return Predicted(index=compiler.best(compiler.weighted_sum(votes, shares)))


def _voting_regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    values = [_needed(m.values, estimator) for m in _members(compiler, estimator, source)]
    return Predicted(values=compiler.mean(values, estimator._weights_not_none))  # noqa: SLF001


def _stacked(compiler: Compiler, estimator: Any, source: Source) -> Source:
    """Return what the final estimator sees: the members' answers, and the table if it wants it."""
    is_binary = len(getattr(estimator, "classes_", ())) == 2
    parts = []
    members = [e for e in estimator.estimators_ if not isinstance(e, str)]
    for member, method in zip(members, estimator.stack_method_, strict=True):
        found = compiler.predict(member, source)
        if method == "predict_proba":
            part = _needed(found.probabilities, member)
            parts.append(compiler.gather(part, [1]) if is_binary else part)
        elif method == "decision_function":
            parts.append(_needed(found.scores, member))
        elif found.values:
            parts.append(found.values)
        else:
            parts.append(_numbers_of_labels(compiler, found, member))
    if estimator.passthrough:
        parts.append(compiler.matrix(source))
    matrix = parts[0] if len(parts) == 1 else compiler.add("Concat", *parts, axis=1)
    width = int(getattr(estimator.final_estimator_, "n_features_in_", -1))
    return Source((matrix,), ("number",), (), width)


def _numbers_of_labels(compiler: Compiler, found: Predicted, member: Any) -> str:
    labels = class_labels(member.classes_)
    if isinstance(labels[0], str):
        raise ConversionRefused(f"{type(member).__name__}: text labels inside a stack")
    table = compiler.number(np.asarray(labels, np.float64))
    number = compiler.add("Gather", table, _needed(found.index, member), axis=0)
    return compiler.shaped(number, -1, 1)


def _stacking_classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    if isinstance(estimator.classes_, list):
        raise ConversionRefused("StackingClassifier: several labels of a row are not supported")
    found = compiler.predict(estimator.final_estimator_, _stacked(compiler, estimator, source))
    if len(estimator.final_estimator_.classes_) != len(estimator.classes_):
        raise ConversionRefused("StackingClassifier: its final estimator knows other classes")
    return found


def _stacking_regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return compiler.predict(estimator.final_estimator_, _stacked(compiler, estimator, source))


def _bagged(compiler: Compiler, estimator: Any, source: Source) -> list[tuple[Any, Predicted]]:
    return [
        (member, compiler.predict(member, compiler.columns(source, list(features))))
        for member, features in zip(
            estimator.estimators_, estimator.estimators_features_, strict=True
        )
    ]


def _bagging_classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    count = len(estimator.classes_)
    parts = []
    for member, found in _bagged(compiler, estimator, source):
        # A member that never drew a class does not know it; members know classes by their place.
        places = np.asarray(member.classes_, np.int64)
        part = found.probabilities or compiler.one_hot(_needed(found.index, member), len(places))
        if len(places) < count:
            part = compiler.add("MatMul", part, compiler.number(np.eye(count)[places]))
        parts.append(part)
    probabilities = compiler.mean(parts)
    return Predicted(compiler.best(probabilities), probabilities=probabilities)


def _bagging_regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    found = _bagged(compiler, estimator, source)
    return Predicted(values=compiler.mean([_needed(f.values, member) for member, f in found]))


def _boosted_classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    count = len(estimator.classes_)
    if count < 2:
        raise ConversionRefused("AdaBoostClassifier: it knows one class only")
    weights = np.asarray(estimator.estimator_weights_, np.float64)[: len(estimator.estimators_)]
    total = float(np.sum(estimator.estimator_weights_))
    sums = []
    for member, found in zip(
        estimator.estimators_, _members(compiler, estimator, source), strict=True
    ):
        places = np.searchsorted(estimator.classes_, member.classes_)
        votes = compiler.one_hot(_needed(found.index, member), len(places))
        # A vote counts as one, a vote for another as -1 / (classes - 1).
        gain = np.full((len(places), count), -1.0 / (count - 1))
        gain[np.arange(len(places)), places] = 1.0
        sums.append(compiler.add("MatMul", votes, compiler.number(gain)))
    decision = compiler.weighted_sum(sums, weights / total)
    if count == 2:
        scores = compiler.add("Sub", compiler.gather(decision, [1]), compiler.gather(decision, [0]))
        # softmax of half the decision, once with each sign
        found_probabilities = compiler.both_sides(scores)
        return Predicted(compiler.is_positive(scores), "", "", found_probabilities, scores)
    scaled = compiler.add("Mul", decision, compiler.number(1.0 / (count - 1)))
    probabilities = compiler.add("Softmax", scaled, axis=1)
    return Predicted(compiler.best(decision), "", "", probabilities, decision)


def _needed(tensor: str, member: Any) -> str:
    if not tensor:
        raise ConversionRefused(
            f"{type(member).__name__}: an estimator inside does not give what is needed of it"
        )
    return tensor


HANDLERS: Final[dict[str, Handler]] = {
    "VotingClassifier": _voting_classifier,
    "VotingRegressor": _voting_regressor,
    "StackingClassifier": _stacking_classifier,
    "StackingRegressor": _stacking_regressor,
    "BaggingClassifier": _bagging_classifier,
    "BaggingRegressor": _bagging_regressor,
    "AdaBoostClassifier": _boosted_classifier,
}

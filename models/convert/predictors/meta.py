"""One answer made of several estimators: a class each, a pair each, a target each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.convert.predictors.inverse import inverse
from models.convert.predictors.kernels import ovr_scores
from models.errors import ConversionRefused

# The score ``(rows, 1)`` of the second class, and what it must exceed.
Scored: TypeAlias = tuple[str, float]


def _binary_score(compiler: Compiler, found: Predicted, member: Any) -> Scored:
    """Return the score ``(rows, 1)`` of the second class, and what it must exceed."""
    if hasattr(member, "decision_function"):
        if not found.scores:
            raise ConversionRefused(f"{type(member).__name__}: its decision_function is not known")
        return found.scores, 0.0
    if found.probabilities:
        return compiler.gather(found.probabilities, [1]), 0.5
    if found.values:
        return found.values, 0.5
    raise ConversionRefused(f"{type(member).__name__}: it gives no score inside another model")


def _one_vs_rest(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    found = [(member, compiler.predict(member, source)) for member in estimator.estimators_]
    scored = [_binary_score(compiler, f, member) for member, f in found]
    if estimator.multilabel_:
        return _several_labels(compiler, estimator, [f for _, f in found], scored)
    if len(found) == 1:
        score, threshold = scored[0]
        shifted = compiler.add("Sub", score, compiler.number(threshold)) if threshold else score
        index = compiler.is_positive(shifted)
    else:
        score = compiler.add("Concat", *(s for s, _ in scored), axis=1)
        index = compiler.best(score, is_last=True)
    result = Predicted(index=index)
    if hasattr(estimator, "decision_function"):
        result = replace(result, scores=score)
    if not hasattr(estimator, "predict_proba"):
        return result
    columns = [compiler.gather(f.probabilities, [1]) for _, f in found]
    if len(columns) == 1:
        return replace(result, probabilities=compiler.complement(columns[0]))
    table = compiler.add("Concat", *columns, axis=1)
    return replace(result, probabilities=_divided(compiler, table))


def _several_labels(
    compiler: Compiler, estimator: Any, found: Sequence[Predicted], scored: Sequence[Scored]
) -> Predicted:
    """Return each label as its own question: one row may have many of them, or none."""
    index = compiler.joined([compiler.flags(score, threshold) for score, threshold in scored])
    scores = probabilities = ""
    if hasattr(estimator, "decision_function"):
        scores = compiler.joined([score for score, _ in scored])
    if hasattr(estimator, "predict_proba"):
        probabilities = compiler.joined([compiler.gather(f.probabilities, [1]) for f in found])
    return Predicted(index=index, probabilities=probabilities, scores=scores)


def _divided(compiler: Compiler, table: str) -> str:
    """Return rows divided by their sums; a row of zeros stays one."""
    total = compiler.summed(table)
    is_zero = compiler.add("Equal", total, compiler.number(0.0))
    safe = compiler.add("Where", is_zero, compiler.number(1.0), total)
    return compiler.add("Div", table, safe)


def _one_vs_one(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    if estimator.pairwise_indices_ is not None:
        raise ConversionRefused("OneVsOneClassifier: precomputed kernels are not supported")
    count = len(estimator.classes_)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    wins, confidences, threshold = [], [], 0.0
    for member in estimator.estimators_:
        found = compiler.predict(member, source)
        score, threshold = _binary_score(compiler, found, member)
        confidences.append(score)
        wins.append(compiler.shaped(compiler.cast(found.index), -1, 1))
    first, second = np.zeros((len(pairs), count)), np.zeros((len(pairs), count))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1.0
    won = wins[0] if len(wins) == 1 else compiler.add("Concat", *wins, axis=1)
    lost = compiler.add("Sub", compiler.number(1.0), won)
    votes = compiler.add(
        "Add",
        compiler.add("MatMul", won, compiler.number(second)),
        compiler.add("MatMul", lost, compiler.number(first)),
    )
    every = confidences[0]
    if len(confidences) > 1:
        every = compiler.add("Concat", *confidences, axis=1)
    sums = compiler.add("MatMul", every, compiler.number(second - first))
    scores = ovr_scores(compiler, votes, sums)
    if count > 2:
        return Predicted(index=compiler.best(scores), scores=scores)
    scores = compiler.gather(scores, [1])
    shifted = compiler.add("Sub", scores, compiler.number(threshold))
    return Predicted(index=compiler.is_positive(shifted), scores=scores)


def _multi_output(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    parts = [compiler.predict(member, source).values for member in estimator.estimators_]
    return Predicted(values=parts[0] if len(parts) == 1 else compiler.add("Concat", *parts, axis=1))


def _chain(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    matrix = compiler.matrix(source)
    found: list[str] = []
    for place, member in enumerate(estimator.estimators_):
        table = matrix if not found else compiler.add("Concat", matrix, *found, axis=1)
        width = source.width + place if source.width >= 0 else -1
        found.append(compiler.predict(member, Source((table,), ("number",), (), width)).values)
    order = np.argsort(estimator.order_)
    parts = [found[place] for place in order]
    return Predicted(values=parts[0] if len(parts) == 1 else compiler.add("Concat", *parts, axis=1))


def _transformed_target(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    values = compiler.predict(estimator.regressor_, source).values
    return Predicted(values=inverse(compiler, estimator.transformer_, values))


HANDLERS: Final[dict[str, Handler]] = {
    "OneVsRestClassifier": _one_vs_rest,
    "OneVsOneClassifier": _one_vs_one,
    "MultiOutputRegressor": _multi_output,
    "RegressorChain": _chain,
    "TransformedTargetRegressor": _transformed_target,
}

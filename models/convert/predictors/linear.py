"""Linear models: coefficients, an intercept and what makes an answer of the margin."""

from __future__ import annotations

from typing import Any, Final

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.errors import ConversionRefused


def _margin(compiler: Compiler, estimator: Any, source: Source) -> str:
    coefficients = estimator.coef_
    if hasattr(coefficients, "toarray"):  # sparsify() was called
        coefficients = coefficients.toarray()
    return compiler.affine_of(source, coefficients, estimator.intercept_)


def _regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return Predicted(values=_margin(compiler, estimator, source))


def _classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    margin = _margin(compiler, estimator, source)
    binarizer = getattr(estimator, "_label_binarizer", None)
    if getattr(binarizer, "y_type_", "").startswith("multilabel"):  # of RidgeClassifier
        return Predicted(index=compiler.flags(margin, 0.0), scores=margin)
    is_binary = len(estimator.classes_) == 2
    index = compiler.is_positive(margin) if is_binary else compiler.best(margin)
    return Predicted(index=index, scores=margin)


def _logistic(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    found = _classifier(compiler, estimator, source)
    is_binary = len(estimator.classes_) == 2
    is_single = getattr(estimator, "multi_class", "auto") == "ovr" or (
        getattr(estimator, "solver", "") == "liblinear"
    )
    if is_binary:
        probabilities = compiler.both_sides(found.scores)
    elif is_single:
        probabilities = _normalised(compiler, compiler.add("Sigmoid", found.scores))
    else:
        probabilities = compiler.add("Softmax", found.scores, axis=1)
    return Predicted(found.index, probabilities=probabilities, scores=found.scores)


def _sgd(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    found = _classifier(compiler, estimator, source)
    is_binary = len(estimator.classes_) == 2
    if estimator.loss == "log_loss":
        if is_binary:
            probabilities = compiler.both_sides(found.scores)
        else:
            probabilities = _normalised(compiler, compiler.add("Sigmoid", found.scores))
    elif estimator.loss == "modified_huber":
        probabilities = _huber(compiler, found.scores, is_binary=is_binary)
    else:
        return found
    return Predicted(found.index, probabilities=probabilities, scores=found.scores)


def _huber(compiler: Compiler, margin: str, *, is_binary: bool) -> str:
    clipped = compiler.add("Clip", margin, compiler.number(-1.0), compiler.number(1.0))
    shifted = compiler.add("Add", clipped, compiler.number(1.0))
    positive = compiler.add("Mul", shifted, compiler.number(0.5))
    return compiler.complement(positive) if is_binary else _normalised(compiler, positive)


def _normalised(compiler: Compiler, scores: str) -> str:
    """Return rows divided by their sums; a row of zeros becomes equal shares."""
    total = compiler.summed(scores)
    is_zero = compiler.add("Equal", total, compiler.number(0.0))
    scores = compiler.add("Where", is_zero, compiler.number(1.0), scores)
    return compiler.add("Div", scores, compiler.summed(scores))


def _discriminant(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    found = _classifier(compiler, estimator, source)
    if len(estimator.classes_) == 2:
        probabilities = compiler.both_sides(found.scores)
    else:
        probabilities = compiler.add("Softmax", found.scores, axis=1)
    return Predicted(found.index, probabilities=probabilities, scores=found.scores)


def _generalised(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    """Write a model with a link function: predictions are its inverse."""
    margin = _margin(compiler, estimator, source)
    link = type(estimator._base_loss.link).__name__  # noqa: SLF001 (the one place that knows)
    if link == "LogLink":
        return Predicted(values=compiler.add("Exp", margin))
    if link != "IdentityLink":
        raise ConversionRefused(f"{type(estimator).__name__}: link {link} is not supported")
    return Predicted(values=margin)


_REGRESSORS: Final = (
    "LinearRegression", "Ridge", "RidgeCV", "Lasso", "LassoCV", "LassoLars", "LassoLarsCV",
    "LassoLarsIC", "Lars", "LarsCV", "ElasticNet", "ElasticNetCV", "BayesianRidge",
    "ARDRegression", "HuberRegressor", "TheilSenRegressor", "SGDRegressor", "QuantileRegressor",
    "LinearSVR", "OrthogonalMatchingPursuit", "OrthogonalMatchingPursuitCV",
    "PassiveAggressiveRegressor", "MultiTaskLasso", "MultiTaskLassoCV", "MultiTaskElasticNet",
    "MultiTaskElasticNetCV",
)  # fmt: skip
_CLASSIFIERS: Final = (
    "LinearSVC", "RidgeClassifier", "RidgeClassifierCV", "Perceptron", "PassiveAggressiveClassifier"
)  # fmt: skip
HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(_REGRESSORS, _regressor),
    **dict.fromkeys(_CLASSIFIERS, _classifier),
    **dict.fromkeys(("PoissonRegressor", "GammaRegressor", "TweedieRegressor"), _generalised),
    **dict.fromkeys(("LogisticRegression", "LogisticRegressionCV"), _logistic),
    "SGDClassifier": _sgd,
    "LinearDiscriminantAnalysis": _discriminant,
}

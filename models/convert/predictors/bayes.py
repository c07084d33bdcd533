"""Naive Bayes over counts: what a class says of a row is a sum over its columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from models.convert.predictors import sparse
from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source


def _predicted(compiler: Compiler, source: Source, weights: Any, offset: Any) -> Predicted:
    likelihood = compiler.affine_of(source, weights, offset)
    index = compiler.best(likelihood)
    return Predicted(index, probabilities=compiler.add("Softmax", likelihood, axis=1))


def _multinomial(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    weights, offset = estimator.feature_log_prob_, estimator.class_log_prior_
    return _predicted(compiler, source, weights, offset)


def _complement(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    offset = np.zeros(len(estimator.classes_))
    if len(offset) == 1:
        offset = estimator.class_log_prior_
    return _predicted(compiler, source, estimator.feature_log_prob_, offset)


def _bernoulli(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    present = np.asarray(estimator.feature_log_prob_, np.float64)
    absent = np.log(1 - np.exp(present))
    threshold = estimator.binarize
    if threshold is not None:
        source = _flags(compiler, source, float(threshold))
    offset = estimator.class_log_prior_ + absent.sum(axis=1)
    return _predicted(compiler, source, present - absent, offset)


def _flags(compiler: Compiler, source: Source, threshold: float) -> Source:
    if source.sparse is not None:
        return replace(source, sparse=sparse.above(compiler, source.sparse, threshold))
    flags = compiler.add("Greater", compiler.matrix(source), compiler.number(threshold))
    return Source((compiler.cast(flags),), ("number",), (), source.width)


HANDLERS: Final[dict[str, Handler]] = {
    "BernoulliNB": _bernoulli,
    "ComplementNB": _complement,
    "MultinomialNB": _multinomial,
}

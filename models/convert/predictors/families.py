"""Which function writes which estimator, by the name of its class."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from models.convert.predictors import (
    bayes,
    ensembles,
    kernels,
    linear,
    meta,
    neighbors,
    networks,
    outliers,
    simple,
    targets,
    thresholds,
    treelike,
)
from models.convert.predictors.compiler import Handler

_SCORED: Final = frozenset(
    {"LinearSVC", "NuSVC", "OneVsOneClassifier", "OneVsRestClassifier",
     "PassiveAggressiveClassifier", "Perceptron", "RidgeClassifier", "RidgeClassifierCV", "SVC",
     "SGDClassifier", "ClassifierChain"}
)  # fmt: skip


def gives_scores(estimator: Any) -> bool:
    """Return whether decision_function of an estimator is written as well."""
    return type(estimator).__name__ in _SCORED and hasattr(estimator, "decision_function")


@cache
def families() -> dict[str, Handler]:
    """Return the functions of all families."""
    found: dict[str, Handler] = {}
    for module in (
        bayes, ensembles, kernels, linear, meta, networks, neighbors, outliers, simple, targets,
        thresholds, treelike,
    ):  # fmt: skip
        found |= module.HANDLERS
    return found

"""Classifiers whose probabilities or threshold were set after training."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.errors import ConversionRefused
from models.servable import Array


def _calibrated(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    parts = [_member(compiler, m, source) for m in estimator.calibrated_classifiers_]
    probabilities = compiler.mean(parts)
    return Predicted(compiler.best(probabilities), probabilities=probabilities)


def _member(compiler: Compiler, member: Any, source: Source) -> str:
    found = compiler.predict(member.estimator, source)
    classes = member.estimator.classes_
    count = len(member.classes)
    if hasattr(member.estimator, "decision_function"):
        scores = found.scores
    elif found.probabilities:
        scores = found.probabilities
        scores = compiler.gather(scores, [1]) if count == 2 else scores
    else:
        scores = ""
    if not scores:
        raise ConversionRefused(f"{type(member.estimator).__name__}: no scores to calibrate")
    if member.method not in ("sigmoid", "isotonic"):
        raise ConversionRefused(
            f"CalibratedClassifierCV: method {member.method!r} is not supported"
        )
    if count == 2:
        positive = _calibrator(compiler, member.calibrators[0], scores)
        return compiler.complement(positive)
    if len(classes) != count:
        raise ConversionRefused("CalibratedClassifierCV: a fold did not see every class")
    columns = [
        _calibrator(compiler, calibrator, compiler.gather(scores, [place]))
        for place, calibrator in enumerate(member.calibrators)
    ]
    table = compiler.add("Concat", *columns, axis=1)
    total = compiler.summed(table)
    is_zero = compiler.add("Equal", total, compiler.number(0.0))
    table = compiler.add("Where", is_zero, compiler.number(1.0), table)
    return compiler.add("Div", table, compiler.summed(table))


def _calibrator(compiler: Compiler, calibrator: Any, score: str) -> str:
    if hasattr(calibrator, "X_thresholds_"):
        return isotonic(compiler, calibrator, score)
    scaled = compiler.add("Mul", score, compiler.number(-calibrator.a_))
    return compiler.add("Sigmoid", compiler.add("Sub", scaled, compiler.number(calibrator.b_)))


def isotonic(compiler: Compiler, model: Any, score: str) -> str:
    """Return the steps and slopes of an IsotonicRegression at a column ``(rows, 1)``."""
    xs = np.asarray(model.X_thresholds_, np.float64)
    ys = np.asarray(model.y_thresholds_, np.float64)
    if model.out_of_bounds != "clip":
        raise ConversionRefused(
            f"IsotonicRegression: out_of_bounds={model.out_of_bounds!r} is not supported: use clip"
        )
    if compiler.precision != "float64":
        raise ConversionRefused("IsotonicRegression: its steps are computed in double only")
    if len(xs) == 1:
        return compiler.add(
            "Add", compiler.add("Mul", score, compiler.number(0.0)), compiler.number(ys[0])
        )
    low, high = compiler.number(xs[0]), compiler.number(xs[-1])
    inside = compiler.add("Max", compiler.add("Min", score, high), low)
    # The place of the segment: thresholds below the value, as searchsorted counts from the left.
    above = compiler.add("Greater", inside, compiler.number(xs[None, :]))
    place = compiler.summed(compiler.cast(above))
    place = compiler.add("Max", place, compiler.number(1.0))
    segment = compiler.add("Cast", compiler.add("Sub", place, compiler.number(1.0)), to=7)
    start, base, slope = (_table(compiler, values, segment) for values in _segments(xs, ys))
    rise = compiler.add("Mul", compiler.add("Sub", inside, start), slope)
    return compiler.add("Add", base, rise)


def _segments(xs: Array, ys: Array) -> tuple[Array, Array, Array]:
    return xs[:-1], ys[:-1], np.diff(ys) / np.diff(xs)


def _table(compiler: Compiler, values: Array, place: str) -> str:
    return compiler.add("Gather", compiler.number(values), place, axis=0)


def _isotonic_regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return Predicted(values=isotonic(compiler, estimator, compiler.matrix(source)))


def _threshold(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    inner = getattr(estimator, "estimator_", None)
    if inner is None:
        inner = estimator.estimator
    found = compiler.predict(inner, source)
    positive = getattr(estimator, "pos_label", None)
    if positive is None:
        positive = getattr(getattr(estimator, "_curve_scorer", None), "pos_label", None)
    place = 1
    if positive is not None:
        place = int(np.flatnonzero(estimator.classes_ == positive)[0])
    method = estimator.response_method
    is_decision = method == "decision_function" or not found.probabilities
    threshold = getattr(estimator, "best_threshold_", getattr(estimator, "threshold", "auto"))
    if is_decision:
        score, default = found.scores, 0.0
        if not score or place != 1:
            raise ConversionRefused(f"{type(estimator).__name__}: response_method {method!r}")
    else:
        score, default = compiler.gather(found.probabilities, [place]), 0.5
    limit = default if threshold == "auto" else float(threshold)
    flag = compiler.is_positive(compiler.add("Sub", score, compiler.number(limit)), or_zero=True)
    index = flag if place == 1 else compiler.add("Sub", compiler.whole(1), flag)
    return Predicted(index, "", "", found.probabilities, found.scores)


HANDLERS: Final[dict[str, Handler]] = {
    "CalibratedClassifierCV": _calibrated,
    "IsotonicRegression": _isotonic_regressor,
    **dict.fromkeys(("FixedThresholdClassifier", "TunedThresholdClassifierCV"), _threshold),
}

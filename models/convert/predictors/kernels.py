"""Support vector machines: kernels in the graph's own precision, votes as libsvm counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from models.convert.predictors.compiler import Compiler, Handler, Predicted, Source
from models.errors import ConversionRefused
from models.servable import Array


def _dense(matrix: Any) -> Array:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, np.float64)


def kernel(compiler: Compiler, matrix: str, vectors: Array, estimator: Any) -> str:
    """Return ``(rows, vectors)``: the kernel between rows and the support vectors."""
    kind = estimator.kernel
    gamma = float(getattr(estimator, "_gamma", 0.0))
    product = compiler.add("MatMul", matrix, compiler.number(vectors.T))
    if kind == "linear":
        return product
    if kind == "rbf":
        return _radial(compiler, matrix, vectors, product, gamma)
    if kind not in ("poly", "sigmoid"):
        raise ConversionRefused(f"{type(estimator).__name__}: kernel {kind!r} is not supported")
    scaled = compiler.add("Mul", product, compiler.number(gamma))
    shifted = compiler.add("Add", scaled, compiler.number(estimator.coef0))
    if kind == "sigmoid":
        return compiler.add("Tanh", shifted)
    result = shifted
    for _ in range(int(estimator.degree) - 1):
        result = compiler.add("Mul", result, shifted)
    return result if estimator.degree > 0 else compiler.add("Sub", shifted, shifted)


def _radial(compiler: Compiler, matrix: str, vectors: Array, product: str, gamma: float) -> str:
    own = compiler.summed(compiler.add("Mul", matrix, matrix))
    theirs = compiler.number((vectors**2).sum(axis=1)[None, :])
    twice = compiler.add("Mul", product, compiler.number(2.0))
    distance = compiler.add("Sub", compiler.add("Add", own, theirs), twice)
    distance = compiler.add("Max", distance, compiler.number(0.0))
    return compiler.add("Exp", compiler.add("Mul", distance, compiler.number(-gamma)))


_RIDGE_KERNELS: Final = ("linear", "rbf", "sigmoid", "poly", "polynomial")


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel as scikit-learn's ``pairwise_kernels`` takes it, in the words of libsvm."""

    kernel: str
    _gamma: float
    coef0: float
    degree: int


def _ridge(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    vectors = _dense(estimator.X_fit_)
    kind = estimator.kernel
    degree = float(estimator.degree)
    is_known = kind in _RIDGE_KERNELS and not estimator.kernel_params
    if not is_known or not degree.is_integer() or degree < 1:
        raise ConversionRefused(
            f"KernelRidge: kernel {kind!r} of degree {degree:g} is not supported: use linear, rbf, "
            "sigmoid, or poly of a whole degree"
        )
    kind = "poly" if kind == "polynomial" else kind
    gamma = 1.0 / vectors.shape[1] if estimator.gamma is None else float(estimator.gamma)
    described = _Kernel(kind, gamma, float(estimator.coef0), int(degree))
    values = kernel(compiler, compiler.matrix(source), vectors, described)
    weights = np.asarray(estimator.dual_coef_, np.float64).reshape(len(vectors), -1)
    return Predicted(values=compiler.affine(values, weights.T, 0.0))


def _sums(compiler: Compiler, estimator: Any, source: Source) -> str:
    """Return the decision of libsvm: ``(rows, 1)``, or one column for each pair of classes."""
    if not len(estimator.support_vectors_):
        raise ConversionRefused(f"{type(estimator).__name__}: it has no support vectors")
    vectors = _dense(estimator.support_vectors_)
    coefficients = _dense(estimator._dual_coef_)
    intercept = np.asarray(estimator._intercept_, np.float64)
    counts = np.asarray(estimator._n_support)  # noqa: SLF001
    if hasattr(estimator, "classes_"):
        coefficients = _pairs(coefficients, counts)
    values = kernel(compiler, compiler.matrix(source), vectors, estimator)
    return compiler.affine(values, coefficients, intercept)


def _pairs(coefficients: Array, counts: Array) -> Array:
    """Return ``(pairs, vectors)``: each pair of classes with its own coefficients."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = []
    for i in range(len(counts)):
        for j in range(i + 1, len(counts)):
            row = np.zeros(coefficients.shape[1])
            row[starts[i] : starts[i + 1]] = coefficients[j - 1, starts[i] : starts[i + 1]]
            row[starts[j] : starts[j + 1]] = coefficients[i, starts[j] : starts[j + 1]]
            rows.append(row)
    return np.array(rows)


def _regressor(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    return Predicted(values=_sums(compiler, estimator, source))


def _classifier(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    sums = _sums(compiler, estimator, source)
    count = len(estimator.classes_)
    if count == 2:
        scores = compiler.add("Neg", sums)
        found = Predicted(index=compiler.is_positive(scores, or_zero=True), scores=scores)
    else:
        against = compiler.add("Neg", sums)
        # libsvm gives a zero to the second of a pair, decision_function to the first.
        votes, _ = pair_votes(compiler, against, count, or_zero=True)
        scores = sums
        if estimator.decision_function_shape == "ovr":
            scores = ovr_scores(compiler, *pair_votes(compiler, against, count))
        index = compiler.best(scores if estimator.break_ties else votes)
        found = Predicted(index=index, scores=scores)
    if not hasattr(estimator, "predict_proba"):
        return found
    # libsvm couples the pairs' probabilities in a loop, which the operator behind skl2onnx has.
    outputs = compiler.piece(estimator, source)
    return replace(found, probabilities=compiler.cast(outputs[1]))


def pair_votes(
    compiler: Compiler, confidences: str, count: int, *, or_zero: bool = False
) -> tuple[str, str]:
    """Return the votes and the sums of confidences ``(rows, count)`` of all pairs of classes.

    A confidence above zero is a vote for the second of a pair, at zero only with ``or_zero``.
    """
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = np.zeros((len(pairs), count)), np.zeros((len(pairs), count))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1.0
    op = "GreaterOrEqual" if or_zero else "Greater"
    wins = compiler.cast(compiler.add(op, confidences, compiler.number(0.0)))
    losses = compiler.add("Sub", compiler.number(1.0), wins)
    votes = compiler.add(
        "Add",
        compiler.add("MatMul", wins, compiler.number(second)),
        compiler.add("MatMul", losses, compiler.number(first)),
    )
    return votes, compiler.add("MatMul", confidences, compiler.number(second - first))


def ovr_scores(compiler: Compiler, votes: str, confidences: str) -> str:
    """Return votes with a share below a third that orders equal ones, as scikit-learn adds it."""
    size = compiler.add("Add", compiler.add("Abs", confidences), compiler.number(1.0))
    share = compiler.add("Div", confidences, compiler.add("Mul", size, compiler.number(3.0)))
    return compiler.add("Add", votes, share)


def _one_class(compiler: Compiler, estimator: Any, source: Source) -> Predicted:
    scores = _sums(compiler, estimator, source)
    flag = compiler.is_positive(scores)
    return Predicted(label=signs(compiler, flag), scores=scores)


def signs(compiler: Compiler, flag: str) -> str:
    """Return 1 for 1 and -1 for 0."""
    twice = compiler.add("Mul", flag, compiler.whole(2))
    return compiler.add("Sub", twice, compiler.whole(1))


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("SVC", "NuSVC"), _classifier),
    **dict.fromkeys(("SVR", "NuSVR"), _regressor),
    "OneClassSVM": _one_class,
    "KernelRidge": _ridge,
}

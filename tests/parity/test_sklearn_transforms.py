"""Transformers of scikit-learn before a model: what they make of a table is made of it here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import (
    decomposition,
    discriminant_analysis,
    feature_selection,
    gaussian_process,
    kernel_approximation,
    kernel_ridge,
    linear_model,
    preprocessing,
    random_projection,
    semi_supervised,
    tree,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Normalizer,
    PowerTransformer,
    QuantileTransformer,
    SplineTransformer,
)

from models.errors import ConversionRefused

from .conftest import worst

pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5
RIDGE = linear_model.Ridge()
TRANSFORMERS = {
    "quantiles": QuantileTransformer(n_quantiles=200),
    "normal quantiles": QuantileTransformer(n_quantiles=50, output_distribution="normal"),
    "splines": SplineTransformer(),
    "splines by quantiles, on as lines": SplineTransformer(
        knots="quantile", extrapolation="linear", include_bias=False
    ),
    "splines of lines": SplineTransformer(degree=1),
    "splines, continued": SplineTransformer(degree=2, extrapolation="continue"),
    "splines, periodic": SplineTransformer(extrapolation="periodic"),
    "powers": PowerTransformer(),
    "powers alone": PowerTransformer(standardize=False),
    "sums of one": Normalizer("l1"),
    "lengths of one": Normalizer("l2"),
    "largest of one": Normalizer("max"),
    "independent": decomposition.FastICA(2, random_state=0),
    "factors": decomposition.FactorAnalysis(2),
    "sparse projection": random_projection.SparseRandomProjection(3, random_state=0),
    "waves": kernel_approximation.RBFSampler(n_components=9, random_state=0),
    "near some": kernel_approximation.Nystroem(n_components=9, random_state=0),
    "chosen one by one": feature_selection.SequentialFeatureSelector(
        RIDGE, n_features_to_select=2, cv=2
    ),
}


def table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Columns with repeated values, zeros, and one of large numbers."""
    x = rng.normal(size=(300, 4))
    x[:, 1] = rng.integers(0, 5, size=300)
    x[:, 2] = np.where(rng.random(300) < 0.4, 0.0, x[:, 2] * 100)
    return x, x[:, 0] + np.sin(x[:, 1]) + np.sqrt(np.abs(x[:, 2])) / 10


def rows_of(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of training, far beyond them, and of zeros, as float32 holds them."""
    far = x[rng.integers(0, 300, 600)] * rng.choice([0.0, -1.0, 3.0, 1e-9], size=(600, 4))
    return np.concatenate([x, far, np.zeros((1, 4))]).astype(np.float32)


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("final", [RIDGE, tree.DecisionTreeRegressor(max_depth=5, random_state=0)],
                         ids=["sum", "branches"])  # fmt: skip
def test_transformers(serve, rng, name, final):
    """A sum shows how exact the numbers are; a tree, that none of them crosses a threshold."""
    x, y = table(rng)
    model = make_pipeline(TRANSFORMERS[name], final).fit(x, y)
    rows = rows_of(x, rng)
    got = serve(model)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows.astype(np.float64))) <= TOLERANCE


def test_missing_values_stay_missing(serve, rng):
    """Quantiles and powers leave them to what comes after; splines make zeros of them."""
    x, y = table(rng)
    x[rng.random(x.shape) < 0.2] = np.nan
    rows = rows_of(x, rng)
    for first in (
        QuantileTransformer(n_quantiles=40),
        QuantileTransformer(n_quantiles=40, output_distribution="normal"),
        PowerTransformer(),
        SplineTransformer(handle_missing="zeros"),
    ):
        last = tree.DecisionTreeRegressor(max_depth=5, random_state=0)
        model = make_pipeline(first, last).fit(x, y)
        got = serve(model)({"input": rows})["prediction"]
        assert worst(got, model.predict(rows.astype(np.float64))) <= TOLERANCE


def test_powers_of_positive_numbers_are_tried_on_such(serve, rng):
    """Box-Cox takes no other, so other rows would prove nothing."""
    x = np.exp(rng.normal(size=(300, 6)))
    model = make_pipeline(PowerTransformer("box-cox"), RIDGE).fit(x, np.log(x).sum(axis=1))
    served = serve(model)
    assert served.parity["rows"] >= 2000
    rows = np.exp(rng.normal(size=(500, 6)) * 2).astype(np.float32)
    got = served({"input": rows})["prediction"]
    assert worst(got, model.predict(rows.astype(np.float64))) <= TOLERANCE


@pytest.mark.parametrize(
    "model",
    [
        kernel_ridge.KernelRidge(),
        kernel_ridge.KernelRidge(kernel="rbf", gamma=0.3),
        kernel_ridge.KernelRidge(kernel="polynomial", degree=2),
    ],
    ids=lambda model: model.kernel,
)
def test_ridge_over_kernels(serve, rng, model):
    """One number a row, or two."""
    x = rng.normal(size=(100, 3))
    rows = (rng.normal(size=(500, 3)) * 2).astype(np.float32)
    for target in (x[:, 0] * x[:, 1], np.stack([x[:, 0], x[:, 1] ** 2], axis=1)):
        model.fit(x, target)
        got = serve(model)({"input": rows})["prediction"]
        expected = model.predict(rows.astype(np.float64))
        assert got.shape == expected.shape
        assert worst(got, expected) <= TOLERANCE


def test_a_model_that_labelled_rows_itself(serve, rng):
    """What was trained in the end answers."""
    x, y = table(rng)
    labels = np.where(rng.random(300) < 0.5, -1, (y > 1).astype(int))
    scaled = preprocessing.StandardScaler().fit_transform(x)
    model = semi_supervised.SelfTrainingClassifier(linear_model.LogisticRegression())
    model.fit(scaled, labels)
    rows = rng.normal(size=(500, 4)).astype(np.float32)
    got = serve(model)({"input": rows})
    expected = model.predict_proba(rows.astype(np.float64))
    assert worst(got["probabilities"], expected) <= TOLERANCE
    assert (got["label"] == model.predict(rows.astype(np.float64))).all()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (make_pipeline(SplineTransformer(extrapolation="error"), RIDGE), "beyond the knots"),
        (make_pipeline(SplineTransformer(degree=0), RIDGE), "use KBinsDiscretizer"),
        (
            make_pipeline(SplineTransformer(degree=1, extrapolation="linear"), RIDGE),
            "continues the first column only",
        ),
        (
            make_pipeline(discriminant_analysis.LinearDiscriminantAnalysis(), RIDGE),
            "LinearDiscriminantAnalysis: as a step before the last",
        ),
        (kernel_ridge.KernelRidge(kernel="laplacian"), "KernelRidge: kernel 'laplacian'"),
        (
            make_pipeline(kernel_approximation.Nystroem(kernel="laplacian"), RIDGE),
            "Nystroem: kernel 'laplacian'",
        ),
        (gaussian_process.GaussianProcessClassifier(), "solves a system of equations"),
    ],
    ids=["splines", "steps", "lines", "discriminant", "kernel", "some rows", "process"],
)
def test_what_cannot_be_exact_is_refused_with_the_reason(serve, rng, model: Any, reason: str):
    """By name, before anything is sent."""
    x, y = table(rng)
    model.fit(x, (y > 1).astype(int))
    with pytest.raises(ConversionRefused, match=reason):
        serve(model)

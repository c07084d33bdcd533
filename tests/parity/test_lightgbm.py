"""LightGBM served as ONNX answers what LightGBM answers."""

from __future__ import annotations

from pathlib import Path

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest

from models.convert import ConvertOptions, convert
from models.errors import ConversionRefused

from .conftest import worst

pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5
FAST = {"n_estimators": 40, "verbose": -1, "num_threads": 1, "min_child_samples": 5}


def table(rng, rows=600, features=5):
    x = rng.normal(size=(rows, features))
    return x, x[:, 0] * x[:, 1] + x[:, 2] - x[:, 3]


def native(model, x, **options):
    return model.booster_.predict(x, num_threads=1, **options)


def own_objective(target, predicted):
    return predicted - target, np.ones_like(target)


def neighbours(model) -> np.ndarray:
    """Return rows that hold every threshold of the model as float32, and both neighbours."""
    frame = model.booster_.trees_to_dataframe()
    thresholds = frame.threshold.dropna().to_numpy(dtype=np.float64)
    thresholds = thresholds[np.abs(thresholds) < 1e38].astype(np.float32)
    values = np.concatenate(
        [thresholds, np.nextafter(thresholds, np.float32(-np.inf)),
         np.nextafter(thresholds, np.float32(np.inf))]
    )  # fmt: skip
    return np.repeat(values[:, None], model.n_features_in_, axis=1)


def test_a08_nan_at_prediction_only_is_zero(serve, rng):
    """A model trained without NaN computes NaN as 0, in the graph as natively."""
    x, y = table(rng)
    model = lgb.LGBMRegressor(**FAST).fit(x, y)
    served = serve(model)
    rows = np.repeat(x[:200].astype(np.float32), 5, axis=0)
    rows[np.arange(1000), np.tile(np.arange(5), 200)] = np.nan
    got = served({"input": rows})["prediction"]
    assert worst(got, native(model, rows)) <= TOLERANCE
    assert worst(got, native(model, np.nan_to_num(rows, nan=0.0))) <= TOLERANCE


@pytest.mark.parametrize("options", [{}, {"zero_as_missing": True}, {"use_missing": False}])
def test_a08_missing_values_in_training_keep_their_direction(serve, rng, options):
    """Whatever LightGBM was told about missing values, the graph does the same."""
    x, y = table(rng)
    x[rng.random(x.shape) < 0.15] = np.nan
    x[rng.random(x.shape) < 0.15] = 0.0
    model = lgb.LGBMRegressor(**FAST, **options).fit(x, y)
    rows = x.astype(np.float32)
    rows[:50] = np.float32(1e-36)
    rows[50:100] = np.float32(-1e-36)
    assert worst(serve(model)({"input": rows})["prediction"], native(model, rows)) <= TOLERANCE


def test_a10_pandas_categories_are_inputs_of_their_own(serve, rng):
    """Every category, an unseen one and a missing one answer as natively."""
    x, y = table(rng)
    frame = pd.DataFrame(
        {
            "n": x[:, 0],
            "city": pd.Categorical(rng.choice(["Oslo", "Rome", "日本", "Bern"], 600)),
            "zone": pd.Categorical(rng.integers(3, 9, 600)),
        }
    )  # fmt: skip
    target = y + frame.city.cat.codes * 2 + (frame.zone.cat.codes == 3) * 4
    model = lgb.LGBMRegressor(**FAST).fit(frame, target)
    served = serve(model)
    kinds = [(s.name, s.datatype, s.categories) for s in served.signature.inputs]
    assert kinds == [
        ("n", "FP32", None),
        ("city", "BYTES", ("Bern", "Oslo", "Rome", "日本")),
        ("zone", "INT64", ("3", "4", "5", "6", "7", "8")),
    ]
    cities = ["Oslo", "Rome", "日本", "Bern", "Paris", served.signature.inputs[1].missing]
    rows = 300
    city = np.array(cities, dtype=object)[rng.integers(0, 6, rows)]
    zone = rng.integers(0, 12, rows)
    n = rng.normal(size=rows).astype(np.float32)
    got = served({"n": n[:, None], "city": city[:, None], "zone": zone[:, None]})["prediction"]
    expected = native(
        model,
        pd.DataFrame(
            {
                "n": n,
                "city": pd.Categorical(
                    [c if c in cities[:4] else None for c in city],
                    categories=frame.city.cat.categories,
                ),
                "zone": pd.Categorical(
                    [z if 3 <= z < 9 else None for z in zone], categories=range(3, 9)
                ),
            }
        ),
    )
    assert worst(got, expected) <= TOLERANCE


def test_a10_categories_that_cannot_be_served_are_refused_by_name(serve, rng):
    """Categories that are fractions are refused, naming the feature."""
    x, y = table(rng)
    frame = pd.DataFrame({"n": x[:, 0], "half": pd.Categorical(np.round(x[:, 1] * 2) / 2)})
    model = lgb.LGBMRegressor(**FAST).fit(frame, y)
    with pytest.raises(ConversionRefused, match="'half'"):
        serve(model)


def test_a10_codes_given_as_numbers(serve, rng):
    """A column named by categorical_feature takes its codes as numbers, cut as LightGBM cuts."""
    x, y = table(rng)
    x[:, 4] = rng.integers(0, 60, 600)
    model = lgb.LGBMRegressor(**FAST).fit(x, y + x[:, 4] % 7, categorical_feature=[4])
    rows = np.repeat(x[:1].astype(np.float32), 400, axis=0)
    rows[:, 4] = np.linspace(-3, 97, 400)
    rows[:4, 4] = [np.nan, np.inf, -np.inf, 1e30]
    assert worst(serve(model)({"input": rows})["prediction"], native(model, rows)) <= TOLERANCE


@pytest.mark.parametrize(
    "objective",
    ["poisson", "gamma", "tweedie", "cross_entropy", "cross_entropy_lambda", "quantile", "mape"],
)
def test_a11_objectives_answer_predict_not_raw_scores(serve, rng, objective):
    """The link function is in the graph."""
    x, y = table(rng)
    y = 1 / (1 + np.exp(-y)) if objective.startswith("cross") else np.exp(y / 2)
    model = lgb.LGBMRegressor(**FAST, objective=objective).fit(x, y)
    rows = x.astype(np.float32)
    got = serve(model)({"input": rows})["prediction"]
    assert worst(got, native(model, rows)) <= TOLERANCE
    if objective in ("poisson", "gamma", "tweedie"):
        assert (got > 0).all()
        assert worst(got, native(model, rows, raw_score=True)) > 0.1


def test_a11_square_root_and_averaged_forests(serve, rng):
    """Regression on roots, and a forest whose trees are averaged, answer as natively."""
    x, y = table(rng)
    rows = x.astype(np.float32)
    for model in (
        lgb.LGBMRegressor(**FAST, reg_sqrt=True).fit(x, y * 10),
        lgb.LGBMRegressor(
            **FAST, boosting_type="rf", bagging_freq=1, bagging_fraction=0.5
        ).fit(x, y),
    ):  # fmt: skip
        assert worst(serve(model)({"input": rows})["prediction"], native(model, rows)) <= TOLERANCE


def test_a11_an_unknown_objective_is_refused(serve, rng):
    """A model with an objective of the user's own is refused, not served as raw scores."""
    x, y = table(rng)
    model = lgb.LGBMRegressor(**FAST, objective=own_objective).fit(x, y)
    for candidate in (model, model.booster_):
        with pytest.raises(ConversionRefused, match=r"objective .* not supported"):
            serve(candidate)


@pytest.mark.parametrize(
    ("labels", "datatype"),
    [([0, 1], "INT64"), (["no", "yes"], "BYTES"), ([5, 2, 9], "INT64")],
)
def test_classes_keep_their_labels(serve, rng, labels, datatype):
    """Labels come back as they were given in training, beside their probabilities."""
    x, y = table(rng)
    bins = np.quantile(y, np.linspace(0, 1, len(labels) + 1)[1:-1])
    target = np.array(labels)[np.digitize(y, bins)]
    model = lgb.LGBMClassifier(**FAST).fit(x, target)
    served = serve(model)
    label, probabilities = served.signature.outputs
    assert (label.datatype, probabilities.labels) == (datatype, tuple(sorted(labels)))
    rows = x.astype(np.float32)
    got = served({"input": rows})
    assert got["label"].tolist() == target_of(model, rows)
    expected = native(model, rows)
    if expected.ndim == 1:
        expected = np.stack([1 - expected, expected], axis=1)
    assert worst(got["probabilities"], expected) <= TOLERANCE


def target_of(model, rows):
    return model.predict(pd.DataFrame(rows, columns=model.feature_name_)).tolist()


def test_one_against_all_classes(serve, rng):
    """Probabilities of multiclassova are each class's own and are not made to sum to 1."""
    x, y = table(rng)
    model = lgb.LGBMClassifier(**FAST, objective="multiclassova").fit(x, np.digitize(y, [-1, 1]))
    rows = x.astype(np.float32)
    got = serve(model)({"input": rows})["probabilities"]
    assert worst(got, native(model, rows)) <= TOLERANCE


def test_a13_thresholds_split_float32_inputs_as_natively(serve, rng):
    """Inputs at each threshold and right beside it take the branch that LightGBM takes."""
    x = rng.integers(0, 100, size=(600, 3)) / 10
    y = np.sin(x).sum(axis=1) + rng.normal(size=600) * 0.01
    model = lgb.LGBMRegressor(**FAST).fit(x, y)
    rows = neighbours(model)
    served = serve(model)
    assert served.parity["precision"] == "float32"  # not saved by the second try in double
    assert worst(served({"input": rows})["prediction"], native(model, rows)) <= TOLERANCE


def test_a13_tiny_thresholds_and_infinite_inputs(serve, rng):
    """Values that LightGBM flushes to zero, and infinities, go where they go natively."""
    x, y = table(rng)
    x[:, 0] *= 1e-35
    x[:, 1][rng.random(600) < 0.1] = np.inf
    x[:, 1][rng.random(600) < 0.1] = -np.inf
    model = lgb.LGBMRegressor(**FAST).fit(x, y)
    rows = np.concatenate([x.astype(np.float32), neighbours(model)])
    assert worst(serve(model)({"input": rows})["prediction"], native(model, rows)) <= TOLERANCE


@pytest.mark.filterwarnings("ignore:The argument 'eval_set'")
def test_a04_early_stopping_keeps_the_best_iteration(serve, rng):
    """Only the trees up to the best iteration are served."""
    x, y = table(rng)
    noisy = y + rng.normal(size=600) * 2
    model = lgb.LGBMRegressor(**FAST | {"n_estimators": 300, "learning_rate": 0.3}).fit(
        x[:300], noisy[:300], eval_set=[(x[300:], noisy[300:])],
        callbacks=[lgb.early_stopping(5, verbose=False)],
    )  # fmt: skip
    assert model.best_iteration_ < 100
    rows = x.astype(np.float32)
    got = serve(model)({"input": rows})["prediction"]
    assert worst(got, model.predict(pd.DataFrame(rows, columns=model.feature_name_))) <= TOLERANCE


def test_sums_that_float32_cannot_hold_are_kept_in_float64(serve, rng):
    """A model whose trees cancel out large numbers is converted in double, and says so."""
    x, y = table(rng)
    booster = lgb.LGBMRegressor(**FAST).fit(x, y).booster_
    for tree, offset in ((0, 1e6), (1, -1e6)):
        for leaf in range(booster.dump_model()["tree_info"][tree]["num_leaves"]):
            booster.set_leaf_output(tree, leaf, booster.get_leaf_output(tree, leaf) + offset)
    served = serve(booster)
    assert served.parity["precision"] == "float64"
    rows = x.astype(np.float32)
    got = served({"input": rows})["prediction"]
    assert worst(got, booster.predict(rows, num_threads=1)) <= TOLERANCE


def test_text_model_with_names_and_a_sample(rng, tmp_path: Path):
    """A text model keeps its column names and is checked on the sample as well."""
    x, y = table(rng)
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d", "e"])
    model = lgb.LGBMClassifier(**FAST).fit(frame, y > 0)
    path, sample = tmp_path / "m.txt", tmp_path / "s.csv"
    model.booster_.save_model(path)
    frame.assign(ignored="x").to_csv(sample, index=False)
    package = convert("m", path, ConvertOptions(sample=sample))
    assert package.manifest.signature["inputs"][0]["columns"] == ["a", "b", "c", "d", "e"]
    parity = package.manifest.parity
    assert parity["rows"] == 600 + 2000
    assert parity["max_difference"] <= TOLERANCE
    assert parity["label_disagreements"] == 0
    assert parity["sample"] == "s.csv"
    assert package.manifest.source["framework"] == "lightgbm"
    assert package.manifest.source["file"] == "m.txt"


def test_linear_trees_are_served_by_the_library(serve, rng):
    """Trees with linear models in their leaves have no graph; the push says so."""
    x, y = table(rng)
    model = lgb.LGBMRegressor(**FAST, linear_tree=True).fit(x, y)
    served = serve(model)
    assert served.parity["reason"] == "onnx: linear trees have no graph; serving natively"
    assert worst(served({"input": x})["prediction"], native(model, x)) == 0
    with pytest.raises(ConversionRefused, match="linear trees have no graph"):
        serve(model, runtime="onnx")


def test_same_model_gives_the_same_version(serve, rng):
    """Converting twice gives the same digest, so a second push adds nothing."""
    x, y = table(rng)
    model = lgb.LGBMRegressor(**FAST).fit(x, y)
    assert serve(model).package.manifest.digest == serve(model).package.manifest.digest

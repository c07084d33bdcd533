"""CatBoost, served as a graph or by itself, answers what CatBoost answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from models.convert import ConvertOptions, convert
from models.errors import ConversionRefused
from registry.errors import InvalidInput
from serving.codec.v1 import decode_predict

from .conftest import hard_rows, worst

catboost = pytest.importorskip("catboost", reason="needs the extra catboost")
pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5
FAST = {
    "iterations": 25, "depth": 4, "verbose": 0, "allow_writing_files": False, "thread_count": 1,
}  # fmt: skip
BOTH = pytest.mark.parametrize("runtime", ["onnx", "native"])


def table(rng, rows=600, features=5):
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return x, x[:, 0] * x[:, 1] + x[:, 2] - x[:, 3]


def rows_of(model, x, rng) -> np.ndarray:
    return hard_rows(np.concatenate(list(model.get_borders().values())), x, rng)


@BOTH
def test_a04_use_best_model_keeps_the_best_iteration(serve, rng, runtime):
    """Only the trees that CatBoost kept answer."""
    x, y = table(rng)
    noisy = y + rng.normal(size=600) * 2
    model = catboost.CatBoostRegressor(
        **FAST | {"iterations": 300}, learning_rate=0.5, use_best_model=True
    ).fit(x[:300], noisy[:300], eval_set=(x[300:], noisy[300:]))
    assert model.tree_count_ < 100
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
@pytest.mark.parametrize(
    "loss", ["RMSE", "MAE", "Quantile:alpha=0.3", "Poisson", "Tweedie:variance_power=1.5",
             "LogLinQuantile", "Huber:delta=1"],
)  # fmt: skip
def test_a11_losses_answer_predict(serve, rng, loss, runtime):
    """The link function is applied where CatBoost's own predict applies one."""
    x, y = table(rng)
    model = catboost.CatBoostRegressor(**FAST, loss_function=loss).fit(x, np.exp(y / 2))
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_a22_missing_values_go_where_nan_mode_says(serve, rng, nan_mode, runtime):
    """NaN is below or above all borders, as in training."""
    x, y = table(rng)
    x[rng.random(600) < 0.1, 0] = np.nan
    model = catboost.CatBoostRegressor(**FAST, nan_mode=nan_mode).fit(x, y + np.isnan(x[:, 0]) * 5)
    rows = rows_of(model, x, rng)
    assert np.isnan(rows[:, 0]).any()
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (["no", "yes"], {}),
        ([0, 1], {"grow_policy": "Lossguide"}),
        ([5, 2, 9], {}),
        (["a", "b", "ç"], {"loss_function": "MultiClassOneVsAll"}),
        ([0, 1, 2], {"grow_policy": "Depthwise"}),
    ],
)
def test_classes_keep_their_labels(serve, rng, labels, options, runtime):
    """Labels come back as in training, beside their probabilities, whatever trees were grown."""
    x, y = table(rng)
    bins = np.quantile(y, np.linspace(0, 1, len(labels) + 1)[1:-1])
    target = np.array(labels)[np.digitize(y, bins)]
    model = catboost.CatBoostClassifier(**FAST, **options).fit(x, target)
    served = serve(model, runtime=runtime)
    assert served.signature.outputs[1].labels == tuple(sorted(labels))
    rows = rows_of(model, x, rng)
    got = served({"input": rows})
    expected = model.predict_proba(rows)
    assert worst(got["probabilities"], expected) <= TOLERANCE
    top = np.sort(expected, axis=1)
    is_tie = top[:, -1] - top[:, -2] <= 2 * TOLERANCE
    same = got["label"] == np.asarray(model.predict(rows)).reshape(-1)
    assert (same | is_tie).all()


def categories_frame(rng, rows=600):
    return pd.DataFrame(
        {
            "n": rng.normal(size=rows).astype(np.float32),
            "city": rng.choice(["Oslo", "Rome", "日本", "Bern"], rows),
            "zone": rng.integers(3, 30, rows),
        }
    )


def test_categories_are_served_by_the_library(serve, rng, tmp_path: Path):
    """Every category, an unseen one too, answers as natively; the push says why it is so."""
    frame = categories_frame(rng)
    target = frame.n + (frame.city == "Rome") * 2 + frame.zone % 3 > 2
    model = catboost.CatBoostClassifier(**FAST, cat_features=["city", "zone"]).fit(frame, target)
    path, sample = tmp_path / "m.cbm", tmp_path / "s.csv"
    model.save_model(path)
    frame.to_csv(sample, index=False)
    served = serve(path, sample=sample)
    assert served.runtime == "native"
    assert served.parity["reason"].startswith("onnx: feature 'city' is no number")
    assert served.parity["rows"] == len(frame) + 2000
    rows = categories_frame(rng, 2000)
    rows.loc[:200, "city"] = "Paris"
    rows.loc[100:300, "zone"] = 77
    rows.loc[200:400, "n"] = np.nan
    got = served(
        {
            "n": rows.n.to_numpy(np.float32)[:, None],
            "city": rows.city.to_numpy(object)[:, None],
            "zone": rows.zone.astype(str).to_numpy(object)[:, None],
        }
    )
    assert worst(got["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    with pytest.raises(ConversionRefused, match="feature 'city' is no number"):
        convert("m", path, ConvertOptions(runtime="onnx"))


def test_at_the_end_of_a_pipeline(serve, rng):
    """Steps of scikit-learn before the trees are one graph with them."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = table(rng)
    x = x.astype(np.float64)  # what the steps compute in, when served and in the proof
    for final, target in (
        (catboost.CatBoostRegressor(**FAST), y),
        (catboost.CatBoostClassifier(**FAST), (y > 0).astype(int)),
    ):
        model = make_pipeline(StandardScaler(), final).fit(x, target)
        got = serve(model)({"input": x.astype(np.float32)})
        if "prediction" in got:
            assert worst(got["prediction"], model.predict(x)) <= TOLERANCE
        else:
            assert worst(got["probabilities"], model.predict_proba(x)) <= TOLERANCE


def test_uncertainty_is_served_by_the_library(serve, rng):
    """A loss with two numbers a row has no graph, and is served natively."""
    x, y = table(rng)
    model = catboost.CatBoostRegressor(**FAST, loss_function="RMSEWithUncertainty").fit(x, y)
    served = serve(model)
    assert served.runtime == "native"
    assert worst(served({"input": x})["prediction"], model.predict(x)) <= TOLERANCE


def test_damaged_files_are_refused(rng, tmp_path: Path):
    """A file cut off anywhere is refused: read from memory, the library would go past its end."""
    frame = categories_frame(rng)
    model = catboost.CatBoostRegressor(**FAST, cat_features=["city", "zone"]).fit(frame, frame.n)
    path = tmp_path / "m.cbm"
    model.save_model(path)
    whole = path.read_bytes()
    for size in (8, len(whole) // 10, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ConversionRefused, match="CatBoost refuses the model file"):
            convert("m", path)


class OwnLoss:
    """Squares, in Python."""

    def calc_ders_range(self, approxes, targets, weights):
        return [(target - approx, -1.0) for approx, target in zip(approxes, targets, strict=True)]


@pytest.mark.filterwarnings("ignore:Failed to import numba")
def test_what_is_not_served_is_refused_by_name(serve, rng, tmp_path: Path):
    """A model that is not fitted, a threshold of its own and an unknown loss are refused."""
    x, y = table(rng)
    with pytest.raises(ConversionRefused, match="CatBoostRegressor is not fitted"):
        serve(catboost.CatBoostRegressor())
    model = catboost.CatBoostClassifier(**FAST).fit(x, y > 0)
    model.set_probability_threshold(0.7)
    with pytest.raises(ConversionRefused, match=r"probability threshold of 0\.7"):
        serve(model)
    model = catboost.CatBoost(FAST | {"loss_function": OwnLoss(), "eval_metric": "RMSE"})
    model.fit(x, y).save_model(str(tmp_path / "m.cbm"))
    with pytest.raises(ConversionRefused, match="loss function PythonUserDefinedPerObject"):
        serve(tmp_path / "m.cbm")


@pytest.mark.parametrize("labels", [["no", "maybe", "yes"], [7, -3, 2]], ids=["texts", "numbers"])
def test_several_classes_at_the_end_of_a_pipeline(serve, rng, labels):
    """CatBoost predicts a column of them, which is no answer of several outputs."""
    pytest.importorskip("skl2onnx")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x, y = table(rng)
    x = x.astype(np.float64)  # what the steps compute in, when served and in the proof
    target = np.array(labels)[np.digitize(y, [-0.5, 0.5])]
    model = pipeline.make_pipeline(
        preprocessing.StandardScaler(), catboost.CatBoostClassifier(**FAST)
    ).fit(x, target)
    got = serve(model)({"input": x.astype(np.float32)})
    assert got["label"].tolist() == model.predict(x).ravel().tolist()
    assert worst(got["probabilities"], model.predict_proba(x)) <= TOLERANCE


@BOTH
@pytest.mark.parametrize("loss", ["MultiLogloss", "MultiCrossEntropy"])
def test_several_labels_of_a_row(serve, rng, loss, runtime):
    """Each label is 0 or 1 by itself, as ``predict`` says, beside its probability."""
    x, y = table(rng)
    labels = np.stack([y > 0, x[:, 0] > 0, x[:, 1] < 0.5], axis=1).astype(float)
    names = {} if loss == "MultiCrossEntropy" else {"class_names": ["up", "east", "cold"]}
    model = catboost.CatBoostClassifier(**FAST, **names, loss_function=loss).fit(x, labels)
    rows = rows_of(model, x, rng)
    served = serve(model, runtime=runtime)
    assert served.signature.outputs[1].labels == (tuple(names.get("class_names", range(3))))
    got = served({"input": rows})
    assert worst(got["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    is_near = np.abs(model.predict_proba(rows) - 0.5) <= TOLERANCE
    assert ((got["label"] == model.predict(rows)) | is_near).all()


@BOTH
@pytest.mark.parametrize("loss", ["MultiRMSEWithMissingValues", "GroupQuantile:alpha=0.3", "RMSPE"])
def test_rarer_losses_answer_predict(serve, rng, loss, runtime):
    """What the model predicts is the sum of its trees."""
    x, y = table(rng)
    target = np.stack([y, np.where(y > 1, np.nan, -y)], axis=1) if loss[:5] == "Multi" else y + 9
    group = {"group_id": np.arange(600) // 20} if loss.startswith("Group") else {}
    model = catboost.CatBoost(FAST | {"loss_function": loss}).fit(x, target, **group)
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
def test_focal_loss_keeps_its_labels(serve, rng, runtime):
    """Two classes with probabilities, as of the usual loss."""
    x, y = table(rng)
    loss = "Focal:focal_alpha=0.3;focal_gamma=2"
    model = catboost.CatBoostClassifier(**FAST, loss_function=loss)
    model.fit(x, np.where(y > 0, "yes", "no"))
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})
    expected = model.predict_proba(rows)
    assert worst(got["probabilities"], expected) <= TOLERANCE
    is_near = np.abs(expected[:, 0] - 0.5) <= TOLERANCE
    assert ((got["label"] == model.predict(rows)) | is_near).all()


def test_whole_numbers_are_the_categories_that_training_made_of_them(serve, rng, tmp_path: Path):
    """A request may say 3 or "3", as to CatBoost itself; true is 1, and 3.0 is refused by both."""
    frame = categories_frame(rng)
    frame["flag"] = frame.zone % 2 == 0
    model = catboost.CatBoostRegressor(**FAST, cat_features=["city", "zone", "flag"])
    model.fit(frame, frame.n + frame.zone % 3 + frame.flag * 2)
    rows = frame.head(20)
    instances = [
        {"n": float(row.n), "city": row.city, "zone": int(row.zone), "flag": bool(row.flag)}
        for row in rows.itertuples()
    ]
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps(instances))
    served = serve(model, sample=sample)
    names = [spec.name for spec in served.signature.inputs if spec.integers]
    assert names == ["city", "zone", "flag"]
    call = decode_predict(json.dumps({"instances": instances}).encode(), served.signature)
    assert worst(served(call.inputs)["prediction"], model.predict(rows)) <= TOLERANCE
    with pytest.raises(InvalidInput, match=r"instances\[0\]\['zone'\]: 3\.0 is not allowed"):
        decode_predict(
            json.dumps({"instances": [instances[0] | {"zone": 3.0}]}).encode(), served.signature
        )
    with pytest.raises(catboost.CatBoostError, match="must be integer or string"):
        model.predict(rows.assign(zone=3.0))
    sample.write_text(json.dumps([instances[0] | {"zone": 3.0}]))
    with pytest.raises(ConversionRefused, match=r"column 'zone': 3\.0 is neither a text nor a wh"):
        serve(model, sample=sample)

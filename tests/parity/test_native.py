"""The choice between a graph and the library itself, and what the library's side answers."""

from __future__ import annotations

import functools

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest

from models.convert import ConvertOptions, choice, convert, trees
from models.errors import ConversionRefused

from .conftest import worst

pytestmark = [pytest.mark.extra, pytest.mark.slow]
FAST = {"n_estimators": 30, "verbose": -1, "num_threads": 1, "min_child_samples": 5}


def test_a13_native_lightgbm_takes_doubles(serve, rng):
    """Digits that float32 does not hold are seen by the library, which takes FP64."""
    x = rng.integers(0, 100, size=(600, 3)) / 10
    x[:, 0] += 1.7e9  # a time stamp in seconds, of which float32 holds every 128th
    model = lgb.LGBMRegressor(**FAST).fit(x, np.sin(x).sum(axis=1))
    served = serve(model, runtime="native")
    assert (served.runtime, served.signature.inputs[0].datatype) == ("native", "FP64")
    assert worst(served({"input": x})["prediction"], model.booster_.predict(x)) == 0
    assert len(np.unique(served({"input": x})["prediction"])) > 10


def test_the_choice_says_how_many_rows_differ(serve, rng, monkeypatch):
    """A graph that is wrong on some rows is not served, unless it is asked for: then refused."""
    x = rng.integers(0, 100, size=(600, 3)) / 10
    model = lgb.LGBMRegressor(**FAST).fit(x, np.sin(x).sum(axis=1))

    def nearest(values):  # what other converters do
        return values.astype(np.float32).astype(np.float64)

    monkeypatch.setattr(trees, "floor_float32", nearest)
    single = functools.partial(choice.most_exact, order=("float32",))
    monkeypatch.setattr(choice, "most_exact", single)
    served = serve(model)
    reason, figures = served.parity["reason"], served.parity["onnx"]
    assert served.runtime == "native"
    assert 0 < figures["rows_differing"] < figures["rows"]
    assert reason == (
        f"onnx: {figures['rows_differing']:,} of {figures['rows']:,} rows differ; serving natively"
    )
    assert served.parity["precision"] == "native"
    assert worst(served({"input": x})["prediction"], model.booster_.predict(x)) == 0
    with pytest.raises(ConversionRefused, match="differs from the native one"):
        serve(model, runtime="onnx")


@pytest.mark.parametrize("rows", [1, 7])
def test_single_rows_and_batches_answer_alike(serve, rng, rows):
    """The path for one row and the one for many give the library's very numbers."""
    x = rng.normal(size=(600, 4))
    for target in (x[:, 0] > 0, np.digitize(x[:, 0], [-1, 1])):
        model = lgb.LGBMClassifier(**FAST).fit(x, target)
        served = serve(model, runtime="native")
        for start in range(0, 70, rows):
            part = np.ascontiguousarray(x[start : start + rows])
            part[0, 1] = np.nan
            got = served({"input": part})
            expected = model.predict_proba(pd.DataFrame(part, columns=model.feature_name_))
            assert worst(got["probabilities"], expected) == 0
            assert (got["label"] == model.classes_[expected.argmax(axis=1)]).all()


def test_a10_categories_of_a_native_model(serve, rng):
    """Every category, an unseen one and a missing one answer as natively."""
    n = rng.normal(size=600)
    cities = ["Bern", "Oslo", "Rome", "日本"]
    frame = pd.DataFrame(
        {
            "n": n,
            "city": pd.Categorical(rng.choice(cities, 600)),
            "zone": pd.Categorical(rng.integers(3, 9, 600)),
        }
    )
    model = lgb.LGBMRegressor(**FAST).fit(frame, n + frame.city.cat.codes + frame.zone.cat.codes)
    served = serve(model, runtime="native")
    assert [s.datatype for s in served.signature.inputs] == ["FP64", "BYTES", "INT64"]
    city = np.array([*cities, "Paris", ""], dtype=object)[rng.integers(0, 6, 400)]
    zone, n = rng.integers(0, 12, 400), rng.normal(size=400)
    got = served({"n": n[:, None], "city": city[:, None], "zone": zone[:, None]})["prediction"]
    known = pd.DataFrame(
        {
            "n": n,
            "city": pd.Categorical([c if c in cities else None for c in city], cities),
            "zone": pd.Categorical([z if 3 <= z < 9 else None for z in zone], range(3, 9)),
        }
    )
    assert worst(got, model.booster_.predict(known)) == 0


def test_what_has_no_native_runtime_says_so(tmp_path, serve, rng):
    """ONNX files and scikit-learn pickles have no library that serves them without a pickle."""
    import joblib
    from sklearn.linear_model import LinearRegression

    path = tmp_path / "m.pkl"
    joblib.dump(LinearRegression().fit([[0.0], [1.0]], [0, 1]), path)
    with pytest.raises(ConversionRefused, match="no format but pickle"):
        convert("m", path, ConvertOptions(runtime="native"))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x09")
    with pytest.raises(ConversionRefused, match="no runtime but onnx"):
        convert("m", path, ConvertOptions(runtime="native"))


def test_only_a_graph_is_made_smaller(serve, rng, tmp_path):
    """A model that is served by its library has no weights that --quantize could round."""
    x = rng.normal(size=(200, 3))
    model = lgb.LGBMRegressor(**FAST, linear_tree=True).fit(x, x[:, 0])
    with pytest.raises(ConversionRefused, match="linear trees have no graph"):
        serve(model, quantize="int8", folder=tmp_path)
    with pytest.raises(ConversionRefused, match="a native model has no graph to make smaller"):
        serve(model, quantize="int8", folder=tmp_path, runtime="native")

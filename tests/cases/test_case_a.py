"""Conversion cases: each model pushed, loaded and asked over HTTP, beside its own library.

``tests/parity`` has more of each kind, without a server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Before a library reads it: several test processes on few cores wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pytest

from models.errors import ConversionRefused
from tests.cases.pushed import Pushed, close, push, rows_of, same_class
from tests.process.server import RunningServer, running_server

lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")
skl2onnx = pytest.importorskip("skl2onnx")

from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import OneClassSVM
from sklearn.tree import DecisionTreeRegressor

pytestmark = [
    pytest.mark.process, pytest.mark.slow, pytest.mark.extra, pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
    pytest.mark.filterwarnings("ignore:The argument 'eval_set'"),
]  # fmt: skip
LGB: dict[str, Any] = {"n_estimators": 20, "verbose": -1, "num_threads": 1, "min_child_samples": 5}
XGB: dict[str, Any] = {"n_estimators": 20, "n_jobs": 1, "max_depth": 4}
CAT: dict[str, Any] = {"iterations": 25, "depth": 4, "verbose": 0, "allow_writing_files": False,
                       "thread_count": 1, "random_seed": 1}  # fmt: skip
CITIES = ["Bern", "Oslo", "日本"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all cases."""
    with running_server(tmp_path_factory.mktemp("a"), workers=1) as running:
        yield running


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def table(rng: np.random.Generator, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] - x[:, 3]).astype(np.float64)


def xgb_splits(model: Any) -> np.ndarray:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    return booster.trees_to_dataframe().Split.dropna().to_numpy(float)


def lgb_splits(model: Any) -> np.ndarray:
    frame = model.booster_.trees_to_dataframe()
    return frame.threshold.dropna().to_numpy(float)


@pytest.mark.parametrize("base_score", [0.2, 0.5, 0.9, None])
def test_a01_base_score_enters_the_margin_once(server, rng, tmp_path, base_score):
    """Given or not, it is neither left out nor added in another space."""
    x, y = table(rng)
    model = xgb.XGBClassifier(base_score=base_score, **XGB).fit(x, y > 0)
    rows = rows_of(x, xgb_splits(model), rng)
    name = f"a01-{base_score}"
    found = push(server, name, model, tmp_path).ask({"input": rows})
    same_class(found, [0, 1], model.predict_proba(rows))


def test_a02_an_estimated_base_score_is_kept(server, rng, tmp_path):
    """A mean far from 0, and classes of 95 to 5."""
    x, y = table(rng)
    regressor = xgb.XGBRegressor(**XGB).fit(x, 1000 + rng.normal(size=len(x)))
    rows = rows_of(x, xgb_splits(regressor), rng)
    found = push(server, "a02r", regressor, tmp_path).ask({"input": rows})
    close(found["prediction"], regressor.predict(rows))
    classifier = xgb.XGBClassifier(**XGB).fit(x, y > np.quantile(y, 0.95))
    rows = rows_of(x, xgb_splits(classifier), rng)
    found = push(server, "a02c", classifier, tmp_path).ask({"input": rows})
    same_class(found, [0, 1], classifier.predict_proba(rows))


@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "catboost"])
def test_a04_early_stopping_keeps_the_best_iteration(server, rng, tmp_path, library):
    """What answers are the trees up to the best iteration, as in the library's own predict."""
    x, y = table(rng)
    y = (y + rng.normal(0, 2, len(y)) > 0).astype(int)
    held = [(x[300:], y[300:])]
    if library == "xgboost":
        model = xgb.XGBClassifier(**XGB | {"n_estimators": 300}, early_stopping_rounds=5)
        model.fit(x[:300], y[:300], eval_set=held, verbose=False)
        best, splits = model.best_iteration, xgb_splits(model)
    elif library == "lightgbm":
        model = lgb.LGBMClassifier(**LGB | {"n_estimators": 300})
        stopping = [lgb.early_stopping(5, verbose=False)]
        model.fit(x[:300], y[:300], eval_set=held, callbacks=stopping)
        best, splits = model.best_iteration_, lgb_splits(model)
    else:
        model = catboost.CatBoostClassifier(**CAT | {"iterations": 300}, learning_rate=0.5)
        model.fit(x[:300], y[:300], eval_set=held[0], use_best_model=True, early_stopping_rounds=5)
        best, splits = model.best_iteration_, np.concatenate(list(model.get_borders().values()))
    assert best < 150
    rows = rows_of(x, splits, rng, finite=library == "catboost")
    found = push(server, f"a04{library}", model, tmp_path).ask({"input": rows})
    same_class(found, [0, 1], model.predict_proba(rows))


def test_a05_softmax_gives_class_numbers_and_probabilities(server, rng, tmp_path):
    """The label is the native class for every row; probabilities sum to 1; metadata names both."""
    x, y = table(rng)
    parameters = {"objective": "multi:softmax", "num_class": 3, "nthread": 1, "max_depth": 4}
    data = xgb.DMatrix(x, np.digitize(y, [-0.5, 0.5]))
    booster = xgb.train(parameters, data, num_boost_round=10)
    rows = rows_of(x, xgb_splits(booster), rng)
    pushed = push(server, "a05", booster, tmp_path)
    found = pushed.ask({"input": rows})
    assert found["label"].tolist() == booster.inplace_predict(rows).astype(int).tolist()
    close(found["probabilities"].sum(axis=1), np.ones(len(rows)))
    assert [spec["name"] for spec in pushed.outputs] == ["label", "probabilities"]
    assert pushed.outputs[1]["labels"] == [0, 1, 2]


def test_a07_a_row_alone_and_in_a_batch_is_answered_alike(server, rng, tmp_path):
    """The same numbers within 1e-6, and the same label, whatever the size of the request."""
    x, y = table(rng)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.digitize(y, [-1, 1]))
    pushed = push(server, "a07", model, tmp_path)
    rows = rng.normal(size=(60, 4)).astype(np.float32)
    alone = pushed.ask({"input": rows}, 1)
    top = np.sort(alone["probabilities"], axis=1)
    is_clear = top[:, -1] - top[:, -2] > 1e-5
    for size in (2, 5, 60):
        together = pushed.ask({"input": rows}, size)
        assert (together["label"] == alone["label"])[is_clear].all()
        assert np.abs(together["probabilities"] - alone["probabilities"]).max() <= 1e-6
    # Many at once: those that arrive together share a run.
    with ThreadPoolExecutor(16) as pool:
        asked = list(pool.map(lambda row: pushed.ask({"input": row[None]}), rows))
    shared = np.concatenate([one["probabilities"] for one in asked])
    assert np.abs(shared - alone["probabilities"]).max() <= 1e-6


def test_a08_nan_at_prediction_only_is_zero(server, rng, tmp_path):
    """A LightGBM model that saw no NaN takes one for 0, in each column."""
    x, y = table(rng)
    model = lgb.LGBMRegressor(**LGB).fit(x, y)
    rows = x[rng.integers(0, len(x), 2000)]
    rows[np.arange(2000), np.arange(2000) % 4] = np.nan
    found = push(server, "a08", model, tmp_path).ask({"input": rows})["prediction"]
    close(found, model.booster_.predict(rows, num_threads=1))
    close(found, model.booster_.predict(np.nan_to_num(rows, nan=0.0), num_threads=1))


def test_a10_pandas_categories_are_inputs_of_their_own(server, rng, tmp_path):
    """Every category by its name, a missing one, and one that training never saw."""
    x, y = table(rng)
    city = rng.choice(CITIES, len(x))
    frame = pd.DataFrame({"n": x[:, 0], "city": pd.Categorical(city, CITIES)})
    model = lgb.LGBMClassifier(**LGB).fit(frame, y + frame.city.cat.codes > 1)
    pushed = push(server, "a10", model, tmp_path)
    asked = rng.choice(np.array([*CITIES, "Paris"], dtype=object), 2000)
    n = rng.normal(size=2000).astype(np.float32)
    known = [value if value in CITIES else None for value in asked]
    native = model.predict_proba(pd.DataFrame({"n": n, "city": pd.Categorical(known, CITIES)}))
    found = pushed.ask({"n": n[:, None], "city": asked[:, None]})
    same_class(found, [0, 1], native)


@pytest.mark.parametrize(
    "objective",
    ["poisson", "tweedie", "gamma", "count:poisson", "reg:tweedie", "reg:gamma"],
)
def test_a11_objectives_with_a_link_answer_predict(server, rng, tmp_path, objective):
    """What predict says, never raw scores: all of it is positive."""
    x, y = table(rng)
    y = np.exp(y / 2)
    if ":" in objective:
        model = xgb.XGBRegressor(objective=objective, **XGB).fit(x, y)
        splits = xgb_splits(model)
    else:
        model = lgb.LGBMRegressor(objective=objective, **LGB).fit(x, y)
        splits = lgb_splits(model)
    rows = rows_of(x, splits, rng)
    name = "a11-" + objective.replace(":", "-")
    found = push(server, name, model, tmp_path).ask({"input": rows})["prediction"]
    close(found, model.predict(rows))
    assert (found > 0).all()


@pytest.mark.parametrize("kind", ["lightgbm", "histograms", "tree"])
def test_a13_thresholds_split_float32_inputs_as_natively(server, rng, tmp_path, kind):
    """Rows at and beside every threshold of features on a grid take the native branch."""
    x = rng.integers(-30, 30, size=(400, 4)) / 10
    y = np.sin(x).sum(axis=1)
    models: dict[str, Any] = {
        "lightgbm": lgb.LGBMRegressor(**LGB),
        "histograms": HistGradientBoostingRegressor(max_iter=20),
        "tree": DecisionTreeRegressor(random_state=1),
    }
    model = models[kind].fit(x, y)
    splits = (np.unique(x)[1:] + np.unique(x)[:-1]) / 2
    if kind == "lightgbm":
        splits = lgb_splits(model)
    elif kind == "tree":
        splits = model.tree_.threshold[model.tree_.feature >= 0]
    rows = rows_of(x, np.concatenate([splits, np.unique(x)]), rng, finite=True)
    found = push(server, f"a13{kind}", model, tmp_path).ask({"input": rows})
    close(found["prediction"], model.predict(rows))


@pytest.mark.parametrize("zipmap", [True, False])
def test_a14_a_classifier_exported_for_double_is_refused_or_right(server, rng, tmp_path, zipmap):
    """What skl2onnx makes for double input never becomes READY unless it answers."""
    x, y = table(rng)
    model = RandomForestClassifier(5, random_state=1).fit(x, y > 0)
    exported = skl2onnx.convert_sklearn(
        model, initial_types=[("input", DoubleTensorType([None, 4]))],
        options={id(model): {"zipmap": zipmap}}, target_opset=18,
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(exported.SerializeToString())
    pushed = or_refused(server, f"a14{zipmap}".lower(), path)
    if pushed is not None:
        label = pushed.ask({"input": x.astype(np.float64)})
        found = next(array for name, array in label.items() if "label" in name)
        assert found.tolist() == model.predict(x).astype(found.dtype).tolist()


def or_refused(server: RunningServer, name: str, path: Path) -> Pushed | None:
    """Push a file that may be refused, with a reason, by the command or by the load."""
    try:
        return push(server, name, path, path.parent)
    except ConversionRefused as error:
        assert str(error)  # noqa: PT017
        return None
    except AssertionError as error:
        # A load that was refused: the version is FAILED, and asking it is a 503, never a 500.
        assert str(error).startswith("4")  # noqa: PT017
        state = server.expect(server.admin("GET", f"/admin/v1/models/{name}/versions/1"))
        assert state["state"] == "FAILED"
        assert server.data("GET", f"/v2/models/{name}/versions/1").status_code == 503
        return None


@pytest.mark.parametrize("labels", [["setosa", "vérité", "日本"], [5, 2, 9]])
def test_a16_a_zipmap_is_refused_or_served_as_a_tensor(server, rng, tmp_path, labels):
    """As exported by default it says what to do; pushed as scikit-learn it has its class order."""
    x, y = table(rng)
    target = np.array(labels)[np.digitize(y, [-0.7, 0.7])]
    model = RandomForestClassifier(5, random_state=1).fit(x, target)
    exported = skl2onnx.convert_sklearn(
        model, initial_types=[("input", FloatTensorType([None, 4]))], target_opset=18
    )
    path = tmp_path / "zipped.onnx"
    path.write_bytes(exported.SerializeToString())
    with pytest.raises(ConversionRefused, match="zipmap"):
        push(server, "a16z", path, tmp_path)
    pushed = push(server, f"a16{len(str(labels[0]))}", model, tmp_path)
    assert pushed.outputs[1]["labels"] == sorted(labels)
    rows = rows_of(x, model.estimators_[0].tree_.threshold, rng, finite=True)
    same_class(pushed.ask({"input": rows}), model.classes_, model.predict_proba(rows))


@pytest.mark.parametrize("model", [DecisionTreeRegressor(max_depth=3), LinearRegression()],
                         ids=["tree", "line"])  # fmt: skip
def test_b20_a_model_exported_for_one_row_of_rank_one(server, rng, tmp_path, model):
    """The runtime takes [4] for a row of some operators and refuses it for others: never wrong."""
    x, y = table(rng)
    exported = skl2onnx.convert_sklearn(
        model.fit(x, y), initial_types=[("input", FloatTensorType([4]))], target_opset=18
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(exported.SerializeToString())
    pushed = or_refused(server, f"b20{type(model).__name__}", path)
    if pushed is not None:
        found = next(iter(pushed.ask({"input": x[0]}).values()))
        close(found.ravel(), model.predict(x[:1]))


@pytest.mark.parametrize("model", [IsolationForest(n_estimators=20, random_state=1),
                                   OneClassSVM(nu=0.1)], ids=["forest", "svm"])  # fmt: skip
def test_a17_outliers_are_minus_one_and_scores_are_the_decision_function(
    server, rng, tmp_path, model
):
    """Labels 1 and -1 as predict gives them, and metadata names the method of the scores."""
    x = np.concatenate([rng.normal(size=(300, 2)), rng.normal(6, 0.2, (10, 2))]).astype(np.float32)
    model.fit(x)
    pushed = push(server, f"a17{type(model).__name__}", model, tmp_path)
    rows = np.concatenate([x, rng.normal(0, 4, size=(1700, 2))]).astype(np.float32)
    found = pushed.ask({"input": rows})
    scores = model.decision_function(rows)
    close(found["scores"].ravel(), scores.ravel())
    is_clear = np.abs(scores.ravel()) > 2e-5
    assert (found["label"] == model.predict(rows))[is_clear].all()
    assert {spec["name"]: spec["method"] for spec in pushed.outputs}["scores"] == (
        "decision_function"
    )


@pytest.mark.parametrize("unknown", [-1, np.nan])
def test_a19_codes_of_missing_and_unknown_texts(server, rng, tmp_path, unknown):
    """As the encoder codes them; where the graph would not, null is refused by the call."""
    cities = np.array(["a", "b", "c", "d", None], dtype=object)
    frame = pd.DataFrame({"city": rng.choice(cities, 300), "n": rng.normal(size=300)})
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=unknown, encoded_missing_value=42
    )
    columns = ColumnTransformer([("city", encoder, ["city"])], remainder="passthrough")
    target = frame.city.map({"a": 0, "b": 5, "c": 1, "d": 3}).fillna(9) + frame.n
    model = make_pipeline(columns, HistGradientBoostingRegressor(max_iter=10)).fit(frame, target)
    name = f"a19{unknown}".replace("-", "m")
    try:
        pushed = push(server, name, model, tmp_path)
    except ConversionRefused as error:
        assert str(error)  # noqa: PT017
        return
    asked = pd.DataFrame({"city": [*"abcd", "unknown"], "n": 0.0})
    arrays = {"city": asked[["city"]].to_numpy(dtype=object), "n": asked[["n"]].to_numpy()}
    close(pushed.ask(arrays)["prediction"], model.predict(asked))
    null = {"instances": [{"city": None, "n": 0.0}]}
    answer = server.data("POST", f"/v1/models/{name}:predict", json=null)
    if answer.status_code == 200:
        native = model.predict(pd.DataFrame({"city": [None], "n": [0.0]}))
        close(np.array(answer.json()["predictions"]), native)
    else:
        assert answer.status_code == 400
        assert "city" in answer.json()["error"]


def test_a20_columns_of_numbers_and_texts_with_missing_values(server, rng, tmp_path):
    """One input a column with its own datatype; null follows the imputers, row by row."""
    count = 300
    frame = pd.DataFrame({
        "age": rng.integers(18, 90, count), "fare": rng.lognormal(3, 1, count),
        "city": rng.choice(np.array([*CITIES, None], dtype=object), count),
    })  # fmt: skip
    target = (frame.age + (frame.city == "Oslo") * 30 + rng.normal(0, 9, count) > 60).astype(int)
    columns = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare"]),
        ("city", make_pipeline(SimpleImputer(strategy="most_frequent"),
                               OneHotEncoder(handle_unknown="ignore")), ["city"]),
    ])  # fmt: skip
    model = make_pipeline(columns, LogisticRegression()).fit(frame, target)
    sample = tmp_path / "sample.csv"
    frame.to_csv(sample, index=False)
    pushed = push(server, "a20", model, tmp_path, sample=sample)
    assert pushed.inputs["city"] == "BYTES"
    assert pushed.inputs["fare"] == "FP64"
    rows = [
        {"age": int(age), "fare": fare, "city": city if isinstance(city, str) else None}
        for age, fare, city in frame.itertuples(index=False)
    ] + [{"age": None, "fare": 7.5, "city": None}, {"age": 40, "fare": None, "city": "Paris"}]
    answer = server.data("POST", "/v1/models/a20:predict", json={"instances": rows})
    found = server.expect(answer)["predictions"]
    asked = pd.DataFrame(rows).astype({"age": float, "fare": float})
    expected = model.predict_proba(asked)
    close(np.array([row["probabilities"] for row in found]), expected)


@pytest.mark.parametrize("nan_mode", ["Max", "Min"])
def test_a22_missing_values_go_where_nan_mode_says(server, rng, tmp_path, nan_mode):
    """Rows with holes in the column that had them."""
    x, y = table(rng)
    x[rng.random(len(x)) < 0.1, 0] = np.nan
    model = catboost.CatBoostRegressor(nan_mode=nan_mode, **CAT).fit(x, y)
    path = tmp_path / "model.cbm"
    model.save_model(str(path))
    rows = rows_of(x, np.concatenate(list(model.get_borders().values())), rng, finite=True)
    rows[::3, 0] = np.nan
    found = push(server, f"a22{nan_mode}", path, tmp_path).ask({"input": rows})
    close(found["prediction"], model.predict(rows))


def test_a23_infinite_thresholds_survive_the_file(server, rng, tmp_path):
    """Columns with infinities: rows at and beside them answer as before the model was saved."""
    x, y = table(rng)
    x = x.astype(np.float64)
    x[:80, 0], x[80:160, 0] = np.inf, -np.inf
    x[:40, 1] = 1e300
    y = y * 0 + (x[:, 0] > 1e30) * 5 - (x[:, 0] < -1e30) * 3 + x[:, 2]
    booster = lgb.train(
        {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3, "min_data_in_bin": 1},
        lgb.Dataset(x, y), num_boost_round=15,
    )  # fmt: skip
    path = tmp_path / "model.txt"
    booster.save_model(path)
    special = np.array([np.inf, -np.inf, 1e38, -1e38, 3.4e38, 0.0, np.nan], dtype=np.float32)
    rows = rng.choice(special, size=(2000, 4)).astype(np.float32)
    rows[:1000, 1:] = rng.normal(size=(1000, 3))
    found = push(server, "a23", path, tmp_path).ask({"input": rows})
    close(found["prediction"], booster.predict(rows, num_threads=1))

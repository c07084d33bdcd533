"""XGBoost, served as a graph or by itself, answers what XGBoost answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from models.convert import ConvertOptions, convert
from models.errors import ConversionRefused

from .conftest import hard_rows, worst

xgb = pytest.importorskip("xgboost", reason="needs the extra xgboost")
pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5
FAST = {"n_estimators": 25, "max_depth": 4, "n_jobs": 1}
BOTH = pytest.mark.parametrize("runtime", ["onnx", "native"])


def table(rng, rows=600, features=5):
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return x, x[:, 0] * x[:, 1] + x[:, 2] - x[:, 3]


def rows_of(model, x, rng) -> np.ndarray:
    frame = model.get_booster().trees_to_dataframe()
    return hard_rows(frame.Split.dropna().to_numpy(), x, rng)


@BOTH
@pytest.mark.parametrize("base_score", [0.2, 0.5, 0.9, None])
def test_a01_base_score_enters_the_margin_once(serve, rng, base_score, runtime):
    """Probabilities are the library's whatever base_score was set, or none."""
    x, y = table(rng)
    model = xgb.XGBClassifier(**FAST | {"n_estimators": 10}, base_score=base_score).fit(x, y > 0)
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})
    assert worst(got["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    assert (got["label"] == model.predict(rows)).all()


@BOTH
def test_a02_an_estimated_base_score_is_kept(serve, rng, runtime):
    """A base score that nobody set is estimated by the library, and served."""
    x, y = table(rng)
    far = xgb.XGBRegressor(**FAST).fit(x, 1000 + rng.normal(size=600))
    rows = rows_of(far, x, rng)
    assert worst(serve(far, runtime=runtime)({"input": rows})["prediction"], far.predict(rows)) <= (
        TOLERANCE
    )
    skewed = xgb.XGBClassifier(**FAST).fit(x, y > np.quantile(y, 0.95))
    rows = rows_of(skewed, x, rng)
    got = serve(skewed, runtime=runtime)({"input": rows})["probabilities"]
    assert worst(got, skewed.predict_proba(rows)) <= TOLERANCE


@BOTH
def test_a04_early_stopping_keeps_the_best_iteration(serve, rng, tmp_path, runtime):
    """Only the trees up to the best iteration answer, from a pickle and from a saved file."""
    x, y = table(rng)
    target = (y + rng.normal(size=600) * 2 > 0).astype(int)
    model = xgb.XGBClassifier(
        n_estimators=300, early_stopping_rounds=5, learning_rate=0.5, n_jobs=1
    ).fit(x[:300], target[:300], eval_set=[(x[300:], target[300:])], verbose=False)
    assert model.best_iteration < 100
    path = tmp_path / "m.ubj"
    model.save_model(path)
    rows = rows_of(model, x, rng)
    for source in (model, path):
        got = serve(source, runtime=runtime)({"input": rows})["probabilities"]
        assert worst(got, model.predict_proba(rows)) <= TOLERANCE
    booster = xgb.train(
        {"nthread": 1, "eta": 0.5}, xgb.DMatrix(x[:300], y[:300]), 60, verbose_eval=False,
        evals=[(xgb.DMatrix(x[300:], y[300:] * 2), "e")], early_stopping_rounds=50,
    )  # fmt: skip
    # Booster.predict takes all trees, unlike the wrapper.
    got = serve(booster, runtime=runtime)({"input": x})["prediction"]
    assert worst(got, booster.predict(xgb.DMatrix(x))) <= TOLERANCE


@BOTH
@pytest.mark.parametrize("objective", ["multi:softmax", "multi:softprob"])
def test_a05_class_numbers_and_probabilities(serve, rng, objective, runtime):
    """The label is the library's for every row, and probabilities sum to 1."""
    x, y = table(rng)
    parameters = {"objective": objective, "num_class": 3, "nthread": 1, "max_depth": 4}
    booster = xgb.train(parameters, xgb.DMatrix(x, np.digitize(y, [-1, 1])), 15)
    rows = np.concatenate([x, rng.normal(size=(1600, 5)).astype(np.float32)])
    got = serve(booster, runtime=runtime)({"input": rows})
    native = booster.predict(xgb.DMatrix(rows))
    labels = native if objective == "multi:softmax" else native.argmax(axis=1)
    assert (got["label"] == labels).all()
    assert np.abs(got["probabilities"].sum(axis=1) - 1).max() < 1e-5
    if objective == "multi:softprob":
        assert worst(got["probabilities"], native) <= TOLERANCE


@BOTH
@pytest.mark.parametrize(
    "objective",
    ["reg:squarederror", "reg:tweedie", "count:poisson", "reg:gamma", "reg:logistic",
     "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror", "survival:cox",
     "binary:logitraw", "binary:hinge"],
)  # fmt: skip
def test_a11_objectives_answer_predict_not_margins(serve, rng, objective, runtime):
    """The link function is applied, once."""
    x, y = table(rng)
    target = np.exp(y / 2)
    if objective.startswith("binary"):
        target = (y > 0).astype(int)
    elif objective == "reg:logistic":
        target = 1 / (1 + np.exp(-y))
    model = xgb.XGBRegressor(**FAST, objective=objective).fit(x, target)
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE
    if objective in ("reg:tweedie", "count:poisson", "reg:gamma"):
        assert (got > 0).all()
        assert worst(got, model.predict(rows, output_margin=True)) > 0.1


def own_objective(target, predicted):
    return predicted - target, np.ones_like(target)


def test_a11_what_has_no_known_link_is_refused(serve, rng):
    """An objective of the user's own is refused by name."""
    x, y = table(rng)
    model = xgb.XGBRegressor(**FAST, objective=own_objective).fit(x, y)
    with pytest.raises(ConversionRefused, match="a Python function is not supported"):
        serve(model)
    with pytest.raises(ConversionRefused, match="is not fitted"):
        serve(xgb.XGBRegressor())


@BOTH
def test_rankers_answer_scores(serve, rng, runtime):
    """A ranker's scores are the library's."""
    x, y = table(rng)
    model = xgb.XGBRanker(**FAST).fit(x, (y > 0) * 1, qid=np.arange(600) // 10)
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
def test_dropped_trees_keep_their_weights(serve, rng, runtime):
    """A DART model's trees count with their weights."""
    x, y = table(rng)
    model = xgb.XGBRegressor(**FAST, booster="dart", rate_drop=0.5, random_state=1).fit(x, y)
    rows = rows_of(model, x, rng)
    got = serve(model, runtime=runtime)({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


@BOTH
def test_a_number_may_stand_for_missing(serve, rng, runtime):
    """What the wrapper calls missing is missing when served, beside NaN."""
    x, y = table(rng)
    x[rng.random(x.shape) < 0.15] = -999
    model = xgb.XGBRegressor(**FAST, missing=-999).fit(x, y)
    got = serve(model, runtime=runtime)({"input": x})["prediction"]
    assert worst(got, model.predict(x)) <= TOLERANCE


@BOTH
@pytest.mark.parametrize("one_hot", [1, 100])
def test_categories_are_inputs_of_their_own(serve, rng, one_hot, runtime):
    """Every category answers as natively; an unseen one goes where a missing one goes."""
    x, y = table(rng)
    cities, zones = ["Bern", "Oslo", "Rome", "Split"], range(3, 12)
    frame = pd.DataFrame(
        {
            "n": x[:, 0],
            "city": pd.Categorical(rng.choice(cities, 600)),
            "zone": pd.Categorical(rng.integers(3, 12, 600), categories=zones),
        }
    )
    target = y + frame.city.cat.codes * 2 + (frame.zone.cat.codes % 3) * 4
    model = xgb.XGBRegressor(
        **FAST, enable_categorical=True, max_cat_to_onehot=one_hot
    ).fit(frame, target)  # fmt: skip
    served = serve(model, runtime=runtime)
    kinds = [(s.name, s.datatype, s.categories) for s in served.signature.inputs]
    assert kinds == [
        ("n", "FP32", None),
        ("city", "BYTES", tuple(cities)),
        ("zone", "INT64", tuple(str(z) for z in zones)),
    ]
    rows = 2000
    city = np.array([*cities, "Paris", ""], dtype=object)[rng.integers(0, 6, rows)]
    zone = rng.integers(0, 15, rows)
    n = rng.choice(np.append(x[:, 0], np.float32(np.nan)), rows)
    got = served({"n": n[:, None], "city": city[:, None], "zone": zone[:, None]})["prediction"]
    known = pd.DataFrame(
        {
            "n": n,
            "city": pd.Categorical([c if c in cities else None for c in city], cities),
            "zone": pd.Categorical([z if z in zones else None for z in zone], zones),
        }
    )
    assert worst(got, model.predict(known)) <= TOLERANCE


def test_categories_that_the_library_saves_wrongly_are_refused_by_name(serve, rng):
    """XGBoost cuts texts beyond ASCII off when it saves them; nobody shall be served those."""
    x, y = table(rng)
    frame = pd.DataFrame({"n": x[:, 0], "city": pd.Categorical(rng.choice(["Züri", "Rom"], 600))})
    model = xgb.XGBRegressor(**FAST, enable_categorical=True).fit(frame, y)
    with pytest.raises(ConversionRefused, match="feature 'city' are not ASCII"):
        serve(model)


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_files_keep_column_names_and_give_one_version(rng, tmp_path: Path, form):
    """Both forms of a file give the same graph, with its columns, checked on the sample as well."""
    x, y = table(rng)
    frame = pd.DataFrame(x, columns=list("abcde"))
    model = xgb.XGBClassifier(**FAST).fit(frame, y > 0)
    path, sample, pickled = tmp_path / f"m.{form}", tmp_path / "s.csv", tmp_path / "m.joblib"
    model.save_model(path)
    frame.to_csv(sample, index=False)
    package = convert("m", path, ConvertOptions(sample=sample))
    assert package.manifest.signature["inputs"][0]["columns"] == list("abcde")
    assert package.manifest.parity["rows"] == 600 + 2000
    assert package.manifest.source["framework"] == "xgboost"
    assert "xgboost-cpu" in package.manifest.source["libraries"]
    import joblib

    joblib.dump(model, pickled)
    assert convert("m", pickled).manifest.digest == package.manifest.digest


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_damaged_files_are_refused(rng, tmp_path: Path, form):
    """A file cut off anywhere is refused by our own reader, before the library's can crash."""
    x, y = table(rng, rows=100)
    model = xgb.XGBRegressor(**FAST | {"n_estimators": 3}).fit(x, y)
    path = tmp_path / f"m.{form}"
    model.save_model(path)
    whole = path.read_bytes()
    for share in (0.05, 0.1, 0.5, 0.9, 0.99, 0.9999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ConversionRefused, match="XGBoost: the model file is damaged"):
            convert("m", path)


def test_trees_that_go_in_circles_are_refused(rng, tmp_path: Path):
    """A child that is its own ancestor is found before anything walks the tree."""
    x, y = table(rng, rows=100)
    model = xgb.XGBRegressor(**FAST | {"n_estimators": 1}).fit(x, y)
    path = tmp_path / "m.json"
    model.save_model(path)
    document = json.loads(path.read_bytes())
    document["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][1] = 0
    path.write_text(json.dumps(document))
    with pytest.raises(ConversionRefused, match="two parents"):
        convert("m", path)


@pytest.mark.parametrize("classes", [2, 3])
def test_at_the_end_of_a_pipeline(serve, rng, classes):
    """Steps of scikit-learn before the trees are one graph with them."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = table(rng)
    x = x.astype(np.float64)  # what the steps compute in, when served and in the proof
    target = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
    model = make_pipeline(StandardScaler(), xgb.XGBClassifier(**FAST)).fit(x, target)
    got = serve(model)({"input": x.astype(np.float32)})
    assert worst(got["probabilities"], model.predict_proba(x)) <= TOLERANCE
    assert (got["label"] == model.predict(x)).all()


def test_inside_other_models(serve, rng):
    """Votes, stacks and one model a target are taken apart, CatBoost beside XGBoost inside."""
    from catboost import CatBoostClassifier, CatBoostRegressor
    from sklearn.ensemble import StackingRegressor, VotingClassifier
    from sklearn.linear_model import Ridge
    from sklearn.multioutput import MultiOutputRegressor

    x, y = table(rng)
    few = {"iterations": 10, "verbose": 0, "thread_count": 1}
    target = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    votes = VotingClassifier(
        [("x", xgb.XGBClassifier(**FAST)), ("c", CatBoostClassifier(**few))], voting="soft"
    ).fit(x, target)
    got = serve(votes)({"input": x})
    assert worst(got["probabilities"], votes.predict_proba(x)) <= TOLERANCE
    assert (got["label"] == votes.predict(x)).all()
    stack = StackingRegressor(
        [("x", xgb.XGBRegressor(**FAST)), ("c", CatBoostRegressor(**few))], Ridge()
    ).fit(x, y)
    each = MultiOutputRegressor(xgb.XGBRegressor(**FAST)).fit(x, np.stack([y, -y], axis=1))
    for model in (stack, each):
        assert worst(serve(model)({"input": x})["prediction"], model.predict(x)) <= TOLERANCE


def test_several_targets(serve, rng):
    """Trees for several targets are a graph; leaves with several numbers are served natively."""
    x, y = table(rng)
    targets = np.stack([y, -y + 3], axis=1)
    for strategy, runtime in (("one_output_per_tree", "onnx"), ("multi_output_tree", "native")):
        model = xgb.XGBRegressor(**FAST, multi_strategy=strategy).fit(x, targets)
        served = serve(model)
        assert served.runtime == runtime
        assert worst(served({"input": x})["prediction"], model.predict(x)) <= TOLERANCE


def labels_of(x: np.ndarray) -> np.ndarray:
    return (np.stack([x[:, 0], x[:, 1] + x[:, 2], -x[:, 3]], axis=1) > 0).astype(int)


@BOTH
def test_several_labels_of_a_row(serve, rng, runtime):
    """Each label is 0 or 1 by itself, as ``predict`` says, beside its probability."""
    x, _ = table(rng)
    model = xgb.XGBClassifier(**FAST).fit(x, labels_of(x))
    rows = rows_of(model, x, rng)
    served = serve(model, runtime=runtime)
    got = served({"input": rows})
    assert [spec.shape for spec in served.signature.outputs] == [(-1, 3), (-1, 3)]
    assert served.signature.outputs[1].labels == (0, 1, 2)
    assert worst(got["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    is_near = np.abs(model.predict_proba(rows) - 0.5) <= TOLERANCE
    assert ((got["label"] == model.predict(rows)) | is_near).all()


def test_several_labels_in_every_form(serve, rng, tmp_path: Path):
    """A leaf with a number for each label is served natively; a plain booster, a pipeline too."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, _ = table(rng)
    x = x.astype(np.float64)
    labels = labels_of(x)
    vector = xgb.XGBClassifier(**FAST, multi_strategy="multi_output_tree").fit(x, labels)
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(x, labels), 10)
    booster.save_model(tmp_path / "m.json")
    piped = make_pipeline(StandardScaler(), xgb.XGBClassifier(**FAST)).fit(x, labels)
    rows = x.astype(np.float32)
    for model, runtime, expected in (
        (vector, "native", vector.predict_proba(rows)),
        (tmp_path / "m.json", "onnx", booster.inplace_predict(rows)),
        (piped, "onnx", piped.predict_proba(rows.astype(np.float64))),
    ):
        served = serve(model)
        assert served.runtime == runtime
        got = served({"input": rows})
        assert worst(got["probabilities"], expected) <= TOLERANCE
        assert (got["label"] == (expected > 0.5)).all()


@pytest.mark.parametrize(
    ("objective", "classes"),
    [("reg:squarederror", 0), ("count:poisson", 0), ("binary:logistic", 2), ("multi:softprob", 3)],
)
def test_a_linear_booster(serve, rng, objective, classes):
    """Weights, the base score and the link; what is missing adds nothing."""
    x, y = table(rng)
    options = {"booster": "gblinear", "n_jobs": 1, "n_estimators": 10, "objective": objective}
    if classes:
        target = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1] + 0.1))
        # Weights cannot be cut back to the best round: all of them answer, then as now.
        model = xgb.XGBClassifier(**options, early_stopping_rounds=3)
        model.fit(x, target, eval_set=[(x, target)], verbose=False)
    else:
        model = xgb.XGBRegressor(**options).fit(x, np.floor(np.exp(y / 2)))
    rows = (rng.normal(size=(2400, 5)) * 3).astype(np.float32)
    rows[:800][rng.random((800, 5)) < 0.3] = np.nan
    served = serve(model)
    assert served.runtime == "onnx"
    got = served({"input": rows})
    if not classes:
        assert worst(got["prediction"], model.predict(rows)) <= TOLERANCE
        return
    assert worst(got["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    assert (got["label"] == model.predict(rows)).all()
    with pytest.raises(ConversionRefused, match="cannot be served natively"):
        serve(model, runtime="native")

"""scikit-learn served as ONNX answers what scikit-learn answers."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris, load_wine
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from models.convert import ConvertOptions, convert
from models.errors import ConversionRefused, InputRefused

from .conftest import worst

pytestmark = [pytest.mark.extra, pytest.mark.slow]
TOLERANCE = 1e-5


def double(x):
    return x * 2


def grid(rng):
    """Return features on a grid of tenths, whose midpoints no float32 holds, and a target."""
    x = rng.integers(0, 100, size=(500, 3)) / 10
    return x, np.sin(x).sum(axis=1) + rng.normal(size=500) * 0.01


def beside(thresholds: np.ndarray, features: int) -> np.ndarray:
    cast = thresholds[np.isfinite(thresholds)].astype(np.float32)
    values = np.concatenate(
        [cast, np.nextafter(cast, np.float32(-np.inf)), np.nextafter(cast, np.float32(np.inf))]
    )
    return np.repeat(values[:, None], features, axis=1)


def thresholds_of(model) -> np.ndarray:
    if hasattr(model, "_predictors"):
        nodes = np.concatenate([p.nodes for stage in model._predictors for p in stage])
        return nodes["num_threshold"][nodes["is_leaf"] == 0]
    trees = np.ravel(model.estimators_) if hasattr(model, "estimators_") else [model]
    return np.concatenate([t.tree_.threshold[t.tree_.children_left >= 0] for t in trees])


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeRegressor(random_state=0),
        RandomForestRegressor(10, random_state=0),
        ExtraTreesRegressor(10, random_state=0),
        GradientBoostingRegressor(n_estimators=20, random_state=0),
        HistGradientBoostingRegressor(max_iter=20, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a13_thresholds_split_float32_inputs_as_natively(serve, rng, model):
    """Inputs at each threshold and right beside it take the branch that scikit-learn takes."""
    x, y = grid(rng)
    model.fit(x, y)
    rows = beside(thresholds_of(model), 3)
    served = serve(model)
    assert served.parity["precision"] == "float32"  # not saved by the second try in double
    got = served({"input": rows})["prediction"]
    assert worst(got, model.predict(rows)) <= TOLERANCE


def test_a13_a_scaler_before_the_trees_changes_no_branch(serve, rng):
    """Behind a scaler the numbers are computed in double, so that branches stay the same."""
    x, y = grid(rng)
    model = make_pipeline(StandardScaler(), DecisionTreeRegressor(random_state=0)).fit(x, y)
    served = serve(model)
    assert served.parity["precision"] == "float64"
    near = model[0].inverse_transform(beside(thresholds_of(model[1]), 3).astype(np.float64))
    rows = near.astype(np.float32)
    got = served({"input": rows})["prediction"]
    assert worst(got, model.predict(rows.astype(np.float64))) <= TOLERANCE


@pytest.mark.parametrize(
    "labels", [np.array([0, 1, 2]), np.array([5, 2, 9]), np.array(["setosa", "vérité", "日本"])]
)
@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(10, random_state=0),
        GradientBoostingClassifier(n_estimators=5, random_state=0),
        HistGradientBoostingClassifier(max_iter=5, random_state=0),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a16_classifiers_give_plain_tensors_with_their_class_order(serve, model, labels):
    """No ZipMap: labels as trained, probabilities as one matrix, classes in the signature."""
    x, y = load_iris(return_X_y=True)
    model.fit(x, labels[y])
    served = serve(model)
    label, probabilities = served.signature.outputs
    assert probabilities.labels == tuple(sorted(labels.tolist()))
    assert label.datatype == ("BYTES" if labels.dtype.kind == "U" else "INT64")
    assert (probabilities.datatype, probabilities.shape) == ("FP32", (-1, 3))
    rows = x.astype(np.float32)
    got = served({"input": rows})
    native = rows.astype(np.float64)
    assert got["label"].tolist() == model.predict(native).tolist()
    assert worst(got["probabilities"], model.predict_proba(native)) <= TOLERANCE


def test_missing_numbers_go_where_the_trees_send_them(serve):
    """A forest that was trained with NaN answers NaN as natively."""
    x, y = load_wine(return_X_y=True)
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    model = RandomForestClassifier(20, random_state=0).fit(x, y)
    rows = x.astype(np.float32)
    assert worst(serve(model)({"input": rows})["probabilities"], model.predict_proba(rows)) <= 1e-5


def people(rng, rows=500):
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "fare": rng.gamma(2, 20, rows).round(2),
            "city": rng.choice(np.array(["Oslo", "Rome", "日本", None], dtype=object), rows),
            "zone": rng.integers(1, 6, rows),
            "stops": rng.integers(0, 9, rows),
            "unused": rng.normal(size=rows),
        }
    )  # fmt: skip
    frame.loc[rng.random(rows) < 0.1, "fare"] = np.nan
    pull = frame.age / 50 + frame.fare.fillna(20) / 40 + (frame.city == "Rome") + frame.stops / 9
    return frame, np.where(pull + rng.normal(size=rows) * 0.3 > 2.7, "yes", "no")


def columns(*texts):
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare"]),
            ("texts", make_pipeline(*texts), ["city"]),
            ("zone", OneHotEncoder(handle_unknown="ignore"), ["zone"]),
            ("stops", "passthrough", ["stops"]),
        ]
    )


def as_inputs(served, frame):
    """Return a DataFrame as a client would send it: null is NaN, or the text for missing."""
    inputs = {}
    for spec in served.signature.inputs:
        values = frame[spec.name]
        if spec.datatype == "BYTES":
            array = np.array([spec.missing if pd.isna(v) else v for v in values], dtype=object)
        else:
            array = values.to_numpy(dtype={"FP64": np.float64, "INT64": np.int64}[spec.datatype])
        inputs[spec.name] = array[:, None]
    return inputs


IMPUTED = (SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))


@pytest.mark.parametrize(
    "texts",
    [
        IMPUTED,
        (SimpleImputer(strategy="constant", fill_value="?"), IMPUTED[1]),
        (OneHotEncoder(handle_unknown="ignore"),),
        (
            SimpleImputer(strategy="most_frequent"),
            OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        ),
    ],
    ids=["most_frequent", "constant", "own category", "ordinal"],
)  # fmt: skip
def test_a20_columns_of_numbers_and_texts_with_missing_values(serve, rng, tmp_path, texts):
    """One input a column with its datatype; null follows the imputer; unseen values as natively."""
    frame, y = people(rng)
    sample = tmp_path / "sample.csv"
    frame.to_csv(sample, index=False)
    model = make_pipeline(columns(*texts), LogisticRegression(max_iter=1000)).fit(frame, y)
    served = serve(model, sample=sample)
    datatypes = {spec.name: spec.datatype for spec in served.signature.inputs}
    assert datatypes == {
        "age": "FP64", "fare": "FP64", "city": "BYTES", "zone": "INT64", "stops": "INT64"
    }  # fmt: skip
    frame.loc[:20, "city"] = "nowhere"
    frame.loc[:20, "zone"] = 77
    got = served(as_inputs(served, frame))
    assert worst(got["probabilities"], model.predict_proba(frame)) <= TOLERANCE
    assert got["label"].tolist() == model.predict(frame).tolist()


@pytest.mark.parametrize("place", ["column", "matrix"])
@pytest.mark.parametrize(
    "texts",
    [IMPUTED, (SimpleImputer(strategy="constant", fill_value="?"), IMPUTED[1]), IMPUTED[1:]],
    ids=["most_frequent", "constant", "own category"],
)
def test_a20_none_is_the_category_that_training_made_of_it(serve, rng, texts, place):
    """An imputer of NaN leaves None alone, so it has weights of its own: null is just that."""
    frame, y = people(rng)
    frame["city"] = pd.Series([v if isinstance(v, str) else None for v in frame.city], dtype=object)
    if place == "matrix":
        frame = frame[["city"]]
        y = np.where(frame.city.isna(), "no", y)
    steps = columns(*texts) if place == "column" else make_pipeline(*texts)
    model = make_pipeline(steps, LogisticRegression(max_iter=1000)).fit(frame, y)
    served = serve(model)
    (spec,) = [spec for spec in served.signature.inputs if spec.datatype == "BYTES"]
    assert spec.missing is not None
    if place == "matrix":
        cells = [spec.missing if v is None else v for v in frame.city]
        inputs = {spec.name: np.array(cells, dtype=object)[:, None]}
    else:
        inputs = as_inputs(served, frame)
    assert worst(served(inputs)["probabilities"], model.predict_proba(frame)) <= TOLERANCE


def test_a20_null_is_refused_where_training_knew_two_kinds_of_it(serve, rng):
    """None and NaN are two categories of the encoder, and null in a request may be either."""
    frame, y = people(rng)
    cells = [v if isinstance(v, str) else (None, float("nan"))[i % 2]
             for i, v in enumerate(frame.city)]  # fmt: skip
    frame["city"] = pd.Series(cells, dtype=object)
    model = make_pipeline(columns(OneHotEncoder(handle_unknown="ignore")), LogisticRegression())
    served = serve(model.fit(frame, y))
    (city,) = [spec for spec in served.signature.inputs if spec.datatype == "BYTES"]
    assert city.missing is None


@pytest.mark.parametrize(
    "final",
    [
        RandomForestClassifier(10, random_state=0),
        lgb.LGBMClassifier(n_estimators=10, verbose=-1, num_threads=1),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a20_trees_behind_a_column_transformer(serve, rng, final):
    """Forests and LightGBM at the end of a pipeline of mixed columns answer as natively."""
    frame, y = people(rng)
    model = make_pipeline(columns(*IMPUTED), final).fit(frame, y)
    served = serve(model)
    got = served(as_inputs(served, frame))
    assert worst(got["probabilities"], model.predict_proba(frame)) <= TOLERANCE


def test_a20_an_encoder_that_refuses_unknown_text_refuses_it_when_served(serve, rng):
    """handle_unknown='error' is the caller's error, as natively."""
    frame, y = people(rng)
    encoder = OneHotEncoder()
    model = make_pipeline(
        columns(SimpleImputer(strategy="most_frequent"), encoder), LogisticRegression()
    ).fit(frame, y)
    served = serve(model)
    inputs = as_inputs(served, frame)
    assert worst(served(inputs)["probabilities"], model.predict_proba(frame)) <= TOLERANCE
    inputs["city"][0, 0] = "nowhere"
    with pytest.raises(InputRefused):
        served(inputs)


def test_a19_missing_text_is_refused_where_the_graph_would_get_it_wrong(serve, rng):
    """Where the conversion does not do what the encoder does with a missing text, null is out."""
    frame, y = people(rng)
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=42
    )
    model = make_pipeline(columns(encoder), RandomForestClassifier(10, random_state=0))
    served = serve(model.fit(frame, y))
    city = next(spec for spec in served.signature.inputs if spec.name == "city")
    known = frame[frame.city.notna()]
    got = served(as_inputs(served, known))
    assert worst(got["probabilities"], model.predict_proba(known)) <= TOLERANCE
    if city.missing is not None:  # a converter that gets it right may allow it
        got = served(as_inputs(served, frame))
        assert worst(got["probabilities"], model.predict_proba(frame)) <= TOLERANCE


def test_a_table_of_numbers_is_one_matrix_with_column_names(serve):
    """A pipeline fitted on a DataFrame of numbers keeps the names of its columns."""
    data = load_wine(as_frame=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(data.data, data.target)
    served = serve(model)
    (spec,) = served.signature.inputs
    assert (spec.name, spec.datatype, spec.shape) == ("input", "FP32", (-1, 13))
    assert spec.columns == tuple(data.data.columns)


@pytest.mark.parametrize("model", [SVC(), LinearSVC()], ids=["SVC", "LinearSVC"])
def test_classifiers_without_probabilities_give_labels_and_scores(serve, model):
    """Where scikit-learn has no predict_proba, decision_function stands in its place."""
    x, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), model).fit(x, y)
    served = serve(model)
    label, scores = served.signature.outputs
    assert (label.name, scores.name, scores.method) == ("label", "scores", "decision_function")
    assert (scores.shape, scores.labels) == ((-1, 3), (0, 1, 2))
    rows = x.astype(np.float32)
    got = served({"input": rows})
    assert got["label"].tolist() == model.predict(rows.astype(np.float64)).tolist()
    assert worst(got["scores"], model.decision_function(rows.astype(np.float64))) <= TOLERANCE


def test_regression_of_one_and_of_two_numbers(serve, rng):
    """One target gives one number a row, two give two."""
    x = rng.normal(size=(100, 3))
    y = x @ np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]]) + 3
    rows = x.astype(np.float32)
    for target, shape in ((y[:, 0], (100,)), (y, (100, 2))):
        model = LinearRegression().fit(x, target)
        got = serve(model)({"input": rows})["prediction"]
        assert got.shape == shape
        assert worst(got, model.predict(rows)) <= TOLERANCE


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (make_pipeline(FunctionTransformer(double), DecisionTreeClassifier()), "r: 'double' is a"),
        (make_pipeline(KNNImputer(), DecisionTreeClassifier()), "KNNImputer: it looks rows"),
        (StandardScaler(), "does not predict"),
        (LogisticRegression(), "is it fitted"),
    ],
    ids=["own function", "imputer by neighbours", "no model", "not fitted"],
)
def test_what_cannot_be_converted_is_refused_with_the_reason(serve, rng, model, reason):
    """The message names what is in the way."""
    x = np.abs(rng.normal(size=(50, 2)))
    if not isinstance(model, LogisticRegression):
        model.fit(x, (x[:, 0] > 0.5).astype(int))
    with pytest.raises(ConversionRefused, match=reason):
        serve(model)


def test_a_tolerance_that_is_not_met_is_refused_with_the_figures(serve):
    """The message says how far the model is off and what was allowed."""
    x, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    with pytest.raises(ConversionRefused, match=r"largest difference .* tolerance is 1e-12"):
        serve(model, tolerance=1e-12)


def test_the_sample_must_have_the_columns(serve, rng, tmp_path):
    """A sample without a column that the pipeline needs is refused by the column's name."""
    frame, y = people(rng)
    sample = tmp_path / "sample.csv"
    frame.drop(columns="fare").to_csv(sample, index=False)
    model = make_pipeline(columns(*IMPUTED), LogisticRegression(max_iter=1000)).fit(frame, y)
    with pytest.raises(ConversionRefused, match="'fare' is missing"):
        serve(model, sample=sample)


def test_a_sample_that_the_pipeline_refuses_is_refused_with_its_words(serve, rng, tmp_path):
    """What scikit-learn says about a row of the sample reaches the user."""
    frame, y = people(rng)
    model = make_pipeline(
        columns(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), LogisticRegression()
    ).fit(frame, y)
    frame.loc[0, "city"] = "nowhere"
    sample = tmp_path / "sample.csv"
    frame.to_csv(sample, index=False)
    with pytest.raises(ConversionRefused, match=r"unknown categories .*nowhere"):
        serve(model, sample=sample)


def test_a_column_named_like_an_output_is_refused(serve, rng):
    """A column 'label' beside the output 'label' is refused by name."""
    frame, y = people(rng)
    renamed = frame[["city", "age"]].rename(columns={"age": "label"})
    encoder = ColumnTransformer(
        [("t", make_pipeline(*IMPUTED), ["city"]), ("n", "passthrough", ["label"])]
    )
    model = make_pipeline(encoder, LogisticRegression(max_iter=1000)).fit(renamed, y)
    with pytest.raises(ConversionRefused, match="'label' has the name of an output"):
        serve(model)


def test_golden_rows_are_kept_with_native_answers(serve, tmp_path):
    """The record holds a few rows as JSON with what the native model answers."""
    x, y = load_iris(return_X_y=True)
    model = RandomForestClassifier(10, random_state=0).fit(x, y)
    golden = serve(model).parity["golden"]
    assert 0 < len(golden) <= 5
    row = np.array([golden[0]["inputs"]["input"]], dtype=np.float32)
    assert golden[0]["outputs"]["probabilities"] == model.predict_proba(row)[0].tolist()


def test_same_file_gives_the_same_version(tmp_path):
    """Converting twice gives the same digest, so a second push adds nothing."""
    import joblib

    x, y = load_iris(return_X_y=True)
    path = tmp_path / "m.joblib"
    joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), path)
    first, second = (convert("m", path, ConvertOptions()).manifest.digest for _ in range(2))
    assert first == second


def test_a_converted_network_can_be_made_smaller(serve, tmp_path):
    """The conversion is proven as ever, and what the smaller weights lose is recorded apart."""
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    model = MLPClassifier((128, 64), max_iter=200, random_state=0).fit(x, y)
    np.save(tmp_path / "sample.npy", x)
    served = serve(model, sample=tmp_path / "sample.npy", quantize="int8-weights", folder=tmp_path)
    parity = served.parity
    assert parity["rows"] == len(x)
    assert parity["label_disagreements"] == 0
    assert parity["conversion"]["max_difference"] <= TOLERANCE
    answers = served({"input": x})
    lost = np.abs(answers["probabilities"] - model.predict_proba(x)).max()
    assert TOLERANCE < lost <= parity["max_difference"] + TOLERANCE
    assert served.package.manifest.source["quantize"]["mode"] == "int8-weights"

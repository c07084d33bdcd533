"""Every family of scikit-learn: each output equals the native method that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
from sklearn import (
    calibration,
    cluster,
    compose,
    covariance,
    decomposition,
    discriminant_analysis,
    dummy,
    ensemble,
    feature_selection,
    impute,
    linear_model,
    mixture,
    model_selection,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.feature_extraction import DictVectorizer
from sklearn.pipeline import make_pipeline

from models.errors import ConversionRefused, LoadFailed

from .conftest import Served, worst

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    # What scikit-learn says of a model's future is not what is tested here.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]
TOLERANCE = 1e-5
WORDS = np.array(["setosa", "vérité", "日本"])


def forest(**options: Any) -> Any:
    return ensemble.RandomForestClassifier(5, random_state=0, **options)


def logistic() -> Any:
    return linear_model.LogisticRegression(max_iter=500)


def boosted(kind: Any = lgb.LGBMClassifier) -> Any:
    return kind(n_estimators=5, num_threads=1, verbose=-1)


def scaled(*steps: Any) -> Any:
    return make_pipeline(preprocessing.StandardScaler(), *steps)


def check(model: Any, served: Served, rows: Any, native: Any) -> None:
    """Hold each output against the native method that the signature names."""
    got = served(rows)
    for spec in served.signature.outputs:
        expected = np.asarray(getattr(model, spec.method)(native))
        assert got[spec.name].shape == expected.shape
        if spec.datatype == "FP32":
            assert worst(got[spec.name], expected) <= TOLERANCE, spec.name
        else:
            assert got[spec.name].tolist() == expected.tolist()


def check_matrix(model: Any, serve: Callable[..., Served], x: np.ndarray) -> Served:
    served = serve(model)
    rows = np.concatenate([x, x[::-1] * 1.25 + 0.1]).astype(np.float32)
    check(model, served, {"input": rows}, rows.astype(np.float64))
    return served


SEVERAL_CLASSES = {
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "extra trees": ensemble.ExtraTreesClassifier(5, random_state=0),
    "boosting": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "histograms": ensemble.HistGradientBoostingClassifier(max_iter=5),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
    "svc": svm.SVC(),
    "svc pairs": svm.SVC(kernel="poly", decision_function_shape="ovo"),
    "svc breaks ties": svm.SVC(kernel="linear", break_ties=True),
    "svc sigmoid": scaled(svm.SVC(kernel="sigmoid")),
    "svc probabilities": svm.SVC(probability=True, random_state=0),
    "nu svc": svm.NuSVC(),
    "linear svc": svm.LinearSVC(),
    "neighbours": neighbors.KNeighborsClassifier(),
    "weighted neighbours": neighbors.KNeighborsClassifier(weights="distance"),
    "logistic": logistic(),
    "sgd": linear_model.SGDClassifier(random_state=0),
    "sgd log": linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "sgd huber": linear_model.SGDClassifier(loss="modified_huber", random_state=0),
    "ridge": linear_model.RidgeClassifier(),
    "gaussian": naive_bayes.GaussianNB(),
    "multinomial": naive_bayes.MultinomialNB(),
    "network": neural_network.MLPClassifier((8,), max_iter=200, random_state=0),
    "discriminant": discriminant_analysis.LinearDiscriminantAnalysis(),
    "stack": ensemble.StackingClassifier([("f", forest()), ("l", logistic())], passthrough=True),
    "stack of pipelines": ensemble.StackingClassifier([("f", forest()), ("s", scaled(svm.SVC()))]),
    "hard votes": ensemble.VotingClassifier(
        [("f", forest()), ("l", logistic()), ("n", naive_bayes.GaussianNB())]
    ),
    "soft votes": ensemble.VotingClassifier(
        [("f", forest()), ("l", scaled(logistic()))], voting="soft", weights=[2, 1]
    ),
    "calibrated": calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=2),
    "bag": ensemble.BaggingClassifier(
        tree.DecisionTreeClassifier(max_depth=3), n_estimators=5, max_features=0.5, random_state=0
    ),
    "bag of votes": ensemble.BaggingClassifier(svm.SVC(), n_estimators=3, random_state=0),
    "one against rest": multiclass.OneVsRestClassifier(svm.LinearSVC()),
    "one against rest, probabilities": multiclass.OneVsRestClassifier(logistic()),
    "one against one": multiclass.OneVsOneClassifier(logistic()),
    "search": model_selection.GridSearchCV(forest(), {"max_depth": [2, 3]}, cv=2),
    "dummy": dummy.DummyClassifier(),
}


@pytest.mark.parametrize("name", SEVERAL_CLASSES)
def test_classifiers_of_several_classes(serve, name):
    """Labels, probabilities and scores of three text classes."""
    x, y = load_iris(return_X_y=True)
    model = SEVERAL_CLASSES[name].fit(x, WORDS[y])
    check_matrix(model, serve, x)


TWO_CLASSES = {
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
    "exponential loss": ensemble.GradientBoostingClassifier(n_estimators=5, loss="exponential"),
    "svc": scaled(svm.SVC()),
    "linear svc": scaled(svm.LinearSVC()),
    "discriminant": discriminant_analysis.LinearDiscriminantAnalysis(),
    "calibrated pipeline": calibration.CalibratedClassifierCV(scaled(svm.LinearSVC()), cv=2),
    "isotonic": calibration.CalibratedClassifierCV(
        naive_bayes.GaussianNB(), method="isotonic", cv=2
    ),
    "calibrated lightgbm": calibration.CalibratedClassifierCV(boosted(), cv=2),
    "votes with lightgbm": ensemble.VotingClassifier(
        [("b", boosted()), ("f", forest())], voting="soft"
    ),
    "lightgbm in a pipeline": scaled(boosted()),
    "threshold": model_selection.FixedThresholdClassifier(scaled(logistic()), threshold=0.3),
    "selected": feature_selection.RFE(
        linear_model.RidgeClassifier(), n_features_to_select=10, step=5
    ),
    "chosen columns": make_pipeline(feature_selection.SelectKBest(k=5), forest()),
    "components": scaled(decomposition.PCA(5), logistic()),
}


@pytest.mark.parametrize("name", TWO_CLASSES)
def test_classifiers_of_two_classes(serve, name):
    """Labels, probabilities and the one score of two classes."""
    x, y = load_breast_cancer(return_X_y=True)
    model = TWO_CLASSES[name].fit(x[:300], y[:300])
    served = check_matrix(model, serve, x[:300])
    for spec in served.signature.outputs:
        assert spec.shape == ((-1, 2) if spec.name == "probabilities" else (-1,))


REGRESSORS = {
    "adaboost": ensemble.AdaBoostRegressor(n_estimators=5, random_state=0),
    "histograms": ensemble.HistGradientBoostingRegressor(max_iter=5, loss="absolute_error"),
    "svr": svm.SVR(),
    "linear kernel": svm.SVR(kernel="linear"),
    "nu svr": svm.NuSVR(),
    "neighbours": neighbors.KNeighborsRegressor(weights="distance"),
    "ridge": linear_model.Ridge(),
    "poisson": linear_model.PoissonRegressor(),
    "stack": ensemble.StackingRegressor(
        [("t", tree.DecisionTreeRegressor(max_depth=3)), ("r", linear_model.Ridge())]
    ),
    "votes": ensemble.VotingRegressor(
        [("b", boosted(lgb.LGBMRegressor)), ("r", linear_model.Ridge())]
    ),
    "bag": ensemble.BaggingRegressor(n_estimators=3, random_state=0),
    "transformed target": compose.TransformedTargetRegressor(
        linear_model.Ridge(), func=np.log1p, inverse_func=np.expm1
    ),
    "scaled target": compose.TransformedTargetRegressor(
        linear_model.Ridge(), transformer=preprocessing.StandardScaler()
    ),
    "powers": make_pipeline(preprocessing.PolynomialFeatures(3), linear_model.Ridge()),
    "bins": make_pipeline(preprocessing.KBinsDiscretizer(5), linear_model.Ridge()),
    "one bit": make_pipeline(preprocessing.Binarizer(threshold=3.3), linear_model.Ridge()),
    "ordinal bins": make_pipeline(
        preprocessing.KBinsDiscretizer(4, encode="ordinal"), linear_model.Ridge()
    ),
    "quantiles": make_pipeline(
        preprocessing.QuantileTransformer(n_quantiles=10), linear_model.Ridge()
    ),
    "logarithm": make_pipeline(preprocessing.FunctionTransformer(np.log1p), linear_model.Ridge()),
    "components": make_pipeline(decomposition.TruncatedSVD(2), linear_model.Ridge()),
    "dummy": dummy.DummyRegressor(),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(serve, rng, name):
    """One number a row, also behind transformers of the table and of the target."""
    x = rng.integers(0, 100, size=(300, 4)) / 10
    model = REGRESSORS[name].fit(x, 2.0 + np.sin(x).sum(axis=1) / 3)
    check_matrix(model, serve, x)


@pytest.mark.parametrize(
    "model",
    [
        ensemble.RandomForestRegressor(5, random_state=0),
        tree.DecisionTreeRegressor(random_state=0),
        neighbors.KNeighborsRegressor(),
        multioutput.MultiOutputRegressor(boosted(lgb.LGBMRegressor)),
        multioutput.RegressorChain(linear_model.Ridge(), order=[1, 0]),
        scaled(ensemble.ExtraTreesRegressor(5, random_state=0)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_regression_of_two_numbers(serve, rng, model):
    """Two targets give two numbers a row, in the order of training."""
    x = rng.integers(0, 100, size=(300, 4)) / 10
    model.fit(x, np.stack([np.sin(x).sum(axis=1), 10 * np.cos(x).sum(axis=1)], axis=1))
    served = check_matrix(model, serve, x)
    assert served.signature.outputs[0].shape == (-1, 2)


def blobs(rng: np.random.Generator) -> np.ndarray:
    """Return 2-D blobs and outliers."""
    return np.concatenate(
        [rng.normal(size=(150, 2)), rng.normal(size=(150, 2)) + 6, rng.uniform(-9, 15, (30, 2))]
    )


@pytest.mark.parametrize(
    "model",
    [
        ensemble.IsolationForest(n_estimators=20, random_state=0),
        ensemble.IsolationForest(n_estimators=9, max_features=1, contamination=0.1, random_state=0),
        scaled(ensemble.IsolationForest(n_estimators=10, random_state=0)),
        svm.OneClassSVM(nu=0.1),
        svm.OneClassSVM(kernel="linear", nu=0.1),
        scaled(svm.OneClassSVM(nu=0.1)),
        linear_model.SGDOneClassSVM(random_state=0),
        neighbors.LocalOutlierFactor(novelty=True),
        covariance.EllipticEnvelope(random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a17_outliers_are_minus_one_and_scores_are_the_decision_function(serve, rng, model):
    """Labels are 1 and -1 as predict gives them, and the signature names what the scores are."""
    x = blobs(rng)
    model.fit(x)
    served = check_matrix(model, serve, x)
    label, scores = served.signature.outputs
    assert (label.datatype, label.method) == ("INT64", "predict")
    assert (scores.name, scores.method) == ("scores", "decision_function")
    far = np.array([[200.0, -200.0], [0.0, 0.0]], np.float32)
    assert served({"input": far})["label"].tolist() == model.predict(far).tolist()
    assert set(served({"input": x.astype(np.float32)})["label"].tolist()) == {1, -1}


@pytest.mark.parametrize(
    "model",
    [
        cluster.KMeans(3, n_init=1, random_state=0),
        scaled(cluster.MiniBatchKMeans(3, n_init=1, random_state=0)),
        cluster.MeanShift(),
        cluster.Birch(n_clusters=3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_clusterers_give_the_number_of_the_cluster(serve, rng, model):
    """The label is what predict gives."""
    x = blobs(rng)
    check_matrix(model.fit(x), serve, x)


def test_a_mixture_gives_the_component_and_the_probabilities(serve, rng):
    """A Gaussian mixture answers like a classifier whose classes are numbers."""
    x = blobs(rng)
    served = check_matrix(mixture.GaussianMixture(3, random_state=0).fit(x), serve, x)
    assert [spec.name for spec in served.signature.outputs] == ["label", "probabilities"]


@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_histogram_boosting_with_categories(serve, rng, kind):
    """Categories split as sets; unseen and missing ones go where they go natively."""
    code = rng.integers(0, 12, 400)
    value = rng.normal(size=400)
    y = np.where(code % 3 == 0, 3.0, -1.0) + value
    if kind == "numbers":
        x = np.stack([value, code * 10.0], axis=1)
        model = ensemble.HistGradientBoostingRegressor(max_iter=20, categorical_features=[1])
        model.fit(x, y)
        rows = np.array([[v, c] for v in (-1.0, 0.5) for c in (*range(0, 130, 5), np.nan, -3.0)])
        rows = rows.astype(np.float32)
        check(model, serve(model), {"input": rows}, rows.astype(np.float64))
        return
    names = np.array([f"shop {i}" for i in range(12)])
    table = pd.DataFrame({"shop": pd.Categorical(names[code]), "value": value})
    model = ensemble.HistGradientBoostingRegressor(max_iter=20, categorical_features=["shop"])
    model.fit(table, y)
    served = serve(model)
    shops = np.array([*names, "elsewhere"], dtype=object)
    rows = {"shop": shops[:, None], "value": np.linspace(-1, 1, 13)[:, None]}
    native = pd.DataFrame({"shop": shops, "value": rows["value"][:, 0]})
    check(model, served, rows, native)
    (shop,) = [spec for spec in served.signature.inputs if spec.name == "shop"]
    assert shop.datatype == "BYTES"
    assert set(shop.categories) == set(names)


def test_an_imputer_with_its_indicator(serve, rng):
    """Which values were missing is a column of its own, in double and single precision."""
    x = rng.normal(size=(300, 3))
    x[rng.random(x.shape) < 0.2] = np.nan
    y = np.isnan(x[:, 0]) + np.nan_to_num(x[:, 1])
    imputer = impute.SimpleImputer(add_indicator=True)
    for final in (linear_model.Ridge(), ensemble.RandomForestRegressor(5, random_state=0)):
        check_matrix(make_pipeline(imputer, final).fit(x, y), serve, x)


def test_rare_and_unknown_categories_share_a_column(serve, rng):
    """min_frequency groups categories; unknown ones join the group."""
    codes = rng.choice(6, p=[0.4, 0.4, 0.1, 0.05, 0.03, 0.02], size=400)
    table = pd.DataFrame({"city": np.array(list("abcdef"), dtype=object)[codes]})
    encoder = preprocessing.OneHotEncoder(min_frequency=30, handle_unknown="infrequent_if_exist")
    columns = compose.ColumnTransformer([("c", encoder, ["city"])])
    model = make_pipeline(columns, logistic()).fit(table, codes > 1)
    cities = np.array([*"abcdef", "nowhere"], dtype=object)
    served = serve(model)
    (spec,) = served.signature.inputs
    check(model, served, {spec.name: cities[:, None]}, pd.DataFrame({"city": cities}))


def test_what_takes_dictionaries_is_refused_by_name(serve):
    """A row of any length has no place in a request."""
    rows = [{"good": 1}, {"bad": 2}] * 10
    model = make_pipeline(DictVectorizer(), logistic()).fit(rows, [1, 0] * 10)
    with pytest.raises(ConversionRefused, match="DictVectorizer: it takes dictionaries"):
        serve(model)


def test_a_column_transformer_inside_other_models(serve, rng):
    """Pipelines over named columns are found inside ensembles as well."""
    table = pd.DataFrame(
        {"age": rng.normal(40, 9, 300), "city": rng.choice(np.array(["a", "b"], object), 300)}
    )
    y = (table.age > 40) ^ (table.city == "a")

    def member(final: Any) -> Any:
        encoder = preprocessing.OneHotEncoder(handle_unknown="ignore")
        numbers = preprocessing.StandardScaler()
        return make_pipeline(
            compose.ColumnTransformer([("n", numbers, ["age"]), ("c", encoder, ["city"])]), final
        )

    model = ensemble.VotingClassifier(
        [("a", member(logistic())), ("b", member(forest()))], voting="soft"
    ).fit(table, y)
    served = serve(model)
    assert {s.name: s.datatype for s in served.signature.inputs} == {"age": "FP64", "city": "BYTES"}
    rows = {"age": table[["age"]].to_numpy(), "city": table[["city"]].to_numpy(dtype=object)}
    check(model, served, rows, table)


def test_neighbours_that_are_equally_far_are_those_of_the_native_model_or_refused(serve, rng):
    """On a grid many rows are equally far: what is served answers as natively at each of them."""
    x = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    model = neighbors.KNeighborsClassifier(4, algorithm="brute").fit(x, rng.integers(0, 2, 144))
    try:
        served = serve(model)
    except ConversionRefused as error:
        assert "differs from the native one" in str(error)  # noqa: PT017
        return
    rows = x.astype(np.float32)
    check(model, served, {"input": rows}, rows.astype(np.float64))


@pytest.mark.parametrize(
    "model",
    [
        scaled(ensemble.IsolationForest(n_estimators=5, random_state=0)),
        scaled(ensemble.AdaBoostRegressor(n_estimators=3, random_state=0)),
        ensemble.VotingRegressor([("t", scaled(tree.DecisionTreeRegressor(random_state=0)))]),
        ensemble.StackingRegressor(
            [("r", linear_model.Ridge())], tree.DecisionTreeRegressor(random_state=0)
        ),
        ensemble.BaggingRegressor(scaled(boosted(lgb.LGBMRegressor)), n_estimators=2),
    ],
    ids=["isolation", "adaboost", "votes", "stack", "bag"],
)
def test_a13_trees_that_see_computed_numbers_see_them_in_double(serve, rng, model):
    """Wherever in a model a tree comes after other steps, those compute in double."""
    x = rng.integers(0, 100, size=(200, 3)) / 10
    served = serve(model.fit(x, np.sin(x).sum(axis=1)))
    assert served.parity["precision"] == "float64"


@pytest.mark.parametrize("zipmap", [True, False])
def test_a14_a_classifier_exported_for_double_is_refused_or_right(tmp_path, shelf, zipmap):
    """What skl2onnx makes for double input never serves unless it loads and answers."""
    import skl2onnx
    from skl2onnx.common.data_types import DoubleTensorType

    x, y = load_iris(return_X_y=True)
    model = forest().fit(x, y)
    exported = skl2onnx.convert_sklearn(
        model, initial_types=[("input", DoubleTensorType([None, 4]))],
        options={id(model): {"zipmap": zipmap}}, target_opset=18,
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(exported.SerializeToString())
    try:
        package = shelf.put(path)
        servable = shelf.load(package, shelf.inspect(package))
    except (ConversionRefused, LoadFailed) as error:
        assert str(error)  # noqa: PT017
        assert zipmap
        return
    label = servable.run({"input": x})[0]
    assert label.tolist() == model.predict(x).tolist()


@pytest.mark.parametrize("name", ["histograms", "logistic", "svc probabilities", "neighbours"])
def test_a07_a_row_alone_and_in_a_batch_is_answered_alike(serve, name):
    """Batches of any size give each row the numbers that it gets alone."""
    x, y = load_iris(return_X_y=True)
    model = SEVERAL_CLASSES[name].fit(x, WORDS[y])
    served = serve(model)
    rows = x.astype(np.float32)
    single = [served({"input": row[None]}) for row in rows]
    for size in (2, 3, 4, 5, 8, 16, 64, 150):
        for start in range(0, len(rows), size):
            batch = served({"input": rows[start : start + size]})
            alone = single[start : start + size]
            expected = np.concatenate([item["probabilities"] for item in alone])
            assert worst(batch["probabilities"], expected) <= 1e-6
            assert batch["label"].tolist() == [item["label"][0] for item in alone]


def test_clusters_of_a_float32_table(serve, rng):
    """KMeans trained on float32 takes nothing else; it is served all the same."""
    x = rng.normal(size=(200, 3)).astype(np.float32)
    model = cluster.KMeans(4, random_state=0, n_init=1).fit(x)
    assert serve(model)({"input": x})["label"].tolist() == model.predict(x).tolist()


def test_a_mixture_is_computed_in_double_where_float_is_not_enough(serve, rng):
    """Its exponents of squares lose more than the tolerance in float32."""
    x = rng.normal(size=(800, 6))
    model = mixture.GaussianMixture(3, random_state=1).fit(x)
    served = serve(model)
    rows = (rng.normal(size=(500, 6)) * 2).astype(np.float32)
    assert worst(served({"input": rows})["probabilities"], model.predict_proba(rows)) <= TOLERANCE
    assert served.parity["precision"] == "float64"

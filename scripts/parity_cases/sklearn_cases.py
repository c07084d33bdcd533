"""scikit-learn: pickles of every kind of estimator, alone, inside others, in pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn import discriminant_analysis as da
from sklearn import ensemble as en
from sklearn import linear_model as lm
from sklearn import svm
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA, FactorAnalysis, FastICA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from scripts.parity_cases import sklearn_texts
from scripts.parity_cases.case import Case, Columns, Trained, table, target_of

# What trees compare is exact at any size; sums and products are not beyond what float32 holds.
_TREES = ("Tree", "Forest", "Boosting", "Bagging")


def _answers(model: Any, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what docs/CONVERTING.md promises of the outputs of a model."""
    predicted = np.asarray(model.predict(x))
    if predicted.ndim == 2 and hasattr(model, "classes_"):
        predicted = predicted.astype(np.int64)
    if hasattr(model, "predict_proba"):
        found = model.predict_proba(x)
        if isinstance(found, list):
            tables = {f"probabilities_{place}": one for place, one in enumerate(found)}
            return {"label": predicted, **tables}
        return {"label": predicted, "probabilities": np.asarray(model.predict_proba(x))}
    if hasattr(model, "decision_function"):
        return {"label": predicted, "scores": np.asarray(model.decision_function(x))}
    if isinstance(model, KMeans):
        return {"label": predicted}
    return {"prediction": predicted}


def _case(model: Any, objective: str, data: str, is_quick: bool = False, name: str = "") -> Case:
    title = name or type(model).__name__

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        target = target_of(objective, y)
        if objective == "targets":
            target = np.stack([y, y * y, -y], axis=1)
        # A float32 table would be computed in float32 by scikit-learn; most are doubles.
        model.fit(x.astype(np.float64), target)

        def save(folder: Path) -> Path:
            path = folder / "model.joblib"
            joblib.dump(model, path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            return _answers(model, rows["input"].astype(np.float64))

        is_tree = any(word in title for word in _TREES)
        return Trained(
            save, {"input": x}, answer, is_nan_taken=data == "missing", is_infinity_taken=False,
            largest=1e30 if is_tree else 20.0,
        )  # fmt: skip

    return Case("sklearn", f"{title}:{objective}", data, train, is_quick)


def _mixed(last: Any, objective: str, data: str) -> Case:
    """Numbers with holes, a text with holes and unknown values, a whole number as a category."""

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        city = rng.choice(np.array(["Bern", "Oslo", "日本", ""], dtype=object), len(x))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1].astype(np.float64), "city": city})
        y = np.nan_to_num(y) + (city == "Oslo")
        numbers = make_pipeline(SimpleImputer(), StandardScaler())
        columns = ColumnTransformer(
            [("numbers", numbers, ["a", "b"]),
             ("city", OneHotEncoder(handle_unknown="ignore"), ["city"])]
        )  # fmt: skip
        model = make_pipeline(columns, last).fit(frame, target_of(objective, y))

        def save(folder: Path) -> Path:
            path = folder / "model.joblib"
            joblib.dump(model, path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            asked = {name: column[:, 0] for name, column in rows.items()}
            return _answers(model, pd.DataFrame(asked))

        more = np.where(rng.random(len(x)) < 0.2, "Paris", city).astype(object)
        rows = {"a": x[:, :1], "b": x[:, 1:2], "city": more[:, None]}
        return Trained(save, rows, answer, is_infinity_taken=False, largest=20.0)

    return Case("sklearn", f"Columns+{type(last).__name__}:{objective}", data, train)


_LOGISTIC = lm.LogisticRegression(max_iter=300)
_TREE = DecisionTreeClassifier(max_depth=5, random_state=1)
_DEEP = DecisionTreeRegressor(max_depth=6, random_state=1)
_SEARCH = GridSearchCV(en.RandomForestClassifier(10, random_state=1), {"max_depth": [3, 5]}, cv=2)
_STACK = en.StackingClassifier([("t", _TREE), ("l", _LOGISTIC)], cv=2)
_VOTE = en.VotingClassifier([("t", _TREE), ("l", _LOGISTIC)], voting="soft")
CASES = [
    _case(en.RandomForestClassifier(30, random_state=1), "multi", "grid", is_quick=True),
    _case(en.RandomForestRegressor(30, random_state=1), "regression", "wide"),
    _case(en.ExtraTreesRegressor(30, random_state=1), "regression", "plain"),
    _case(en.ExtraTreesClassifier(30, random_state=1), "binary", "missing"),
    _case(en.GradientBoostingClassifier(n_estimators=30, random_state=1), "binary", "grid"),
    _case(en.GradientBoostingRegressor(n_estimators=30, random_state=1), "regression", "grid"),
    _case(en.HistGradientBoostingClassifier(max_iter=30), "multi", "missing"),
    _case(en.HistGradientBoostingRegressor(max_iter=30), "regression", "grid"),
    _case(en.HistGradientBoostingRegressor(loss="poisson", max_iter=30), "poisson", "missing",
          name="HistGradientBoostingPoisson"),
    _case(_TREE, "multi", "grid"),
    _case(DecisionTreeRegressor(random_state=1), "regression", "grid"),
    _case(en.IsolationForest(n_estimators=20, random_state=1), "regression", "plain"),
    _case(en.AdaBoostClassifier(n_estimators=15, random_state=1), "binary", "plain"),
    _case(en.BaggingClassifier(_TREE, 8, random_state=1), "multi", "plain"),
    _case(_VOTE, "binary", "plain"),
    _case(_STACK, "multi", "grid"),
    _case(CalibratedClassifierCV(_TREE, cv=2), "binary", "plain"),
    _case(CalibratedClassifierCV(_LOGISTIC, method="isotonic", cv=2), "multi", "plain",
          name="CalibratedIsotonic"),
    _case(OneVsRestClassifier(_LOGISTIC), "multi", "plain"),
    _case(MultiOutputRegressor(DecisionTreeRegressor(max_depth=4)), "targets", "grid"),
    _case(TransformedTargetRegressor(lm.Ridge(), func=np.log1p, inverse_func=np.expm1),
          "gamma", "plain"),
    _case(_SEARCH, "binary", "grid"),
    _case(lm.LinearRegression(), "regression", "plain"),
    _case(lm.Ridge(), "targets", "plain"),
    _case(lm.Lasso(alpha=0.01), "regression", "grid"),
    _case(lm.BayesianRidge(), "regression", "plain"),
    _case(lm.HuberRegressor(), "regression", "plain"),
    _case(lm.PoissonRegressor(), "poisson", "plain"),
    _case(lm.GammaRegressor(), "gamma", "plain"),
    _case(lm.TweedieRegressor(power=1.5), "tweedie", "plain"),
    _case(_LOGISTIC, "multi", "grid"),
    _case(lm.SGDClassifier(random_state=1), "binary", "plain"),
    _case(lm.Perceptron(random_state=1), "multi", "plain"),
    _case(da.LinearDiscriminantAnalysis(), "multi", "plain"),
    _case(da.QuadraticDiscriminantAnalysis(), "binary", "plain"),
    _case(svm.SVC(), "multi", "plain"),
    _case(svm.NuSVC(), "binary", "plain"),
    _case(svm.SVR(), "regression", "plain"),
    _case(svm.LinearSVC(), "multi", "grid"),
    _case(svm.OneClassSVM(nu=0.1), "regression", "plain"),
    _case(KNeighborsClassifier(5), "binary", "plain"),
    _case(KNeighborsRegressor(4, weights="distance"), "regression", "plain"),
    _case(KMeans(5, random_state=1, n_init=2), "regression", "plain"),
    _case(GaussianMixture(3, random_state=1), "regression", "plain"),
    _case(GaussianNB(), "multi", "plain"),
    _case(MLPClassifier(hidden_layer_sizes=(16,), max_iter=60, random_state=1), "multi", "plain"),
    _case(MLPRegressor(hidden_layer_sizes=(16,), max_iter=60, random_state=1),
          "regression", "plain"),
    _case(GaussianProcessRegressor(alpha=1e-2), "regression", "plain"),
    _case(make_pipeline(StandardScaler(), _LOGISTIC), "binary", "plain"),
    _case(make_pipeline(SimpleImputer(add_indicator=True), StandardScaler(), lm.Ridge()),
          "regression", "missing", name="ImputeScaleRidge"),
    _case(make_pipeline(SimpleImputer(strategy="median"), en.RandomForestClassifier(15)),
          "multi", "missing", name="ImputeForest"),
    _case(make_pipeline(StandardScaler(), PolynomialFeatures(2), lm.Ridge()),
          "regression", "plain", name="PolynomialRidge"),
    _case(make_pipeline(KBinsDiscretizer(5), _LOGISTIC), "binary", "plain", name="BinsLogistic"),
    _case(make_pipeline(RobustScaler(), PCA(3), DecisionTreeRegressor(max_depth=6)),
          "regression", "plain", name="ScaledPcaTree"),
    _case(make_pipeline(PowerTransformer(), lm.LinearRegression()), "regression", "plain",
          name="PowerLinear"),
    _case(make_pipeline(QuantileTransformer(n_quantiles=50), lm.Ridge()), "regression", "plain",
          name="QuantileRidge"),
    _case(make_pipeline(FunctionTransformer(np.abs), FunctionTransformer(np.log1p), lm.Ridge()),
          "regression", "plain", name="LogRidge"),
    _case(make_pipeline(QuantileTransformer(n_quantiles=100, output_distribution="normal"), _DEEP),
          "regression", "grid", name="NormalQuantileBranches"),
    _case(make_pipeline(QuantileTransformer(n_quantiles=500), _DEEP), "regression", "plain",
          name="QuantileBranches"),
    _case(make_pipeline(PowerTransformer(), _DEEP), "regression", "grid", name="PowerBranches"),
    _case(make_pipeline(SplineTransformer(), lm.Ridge()), "regression", "grid",
          name="SplineRidge"),
    _case(make_pipeline(SplineTransformer(knots="quantile", extrapolation="linear"), _LOGISTIC),
          "binary", "plain", name="SplineLogistic"),
    _case(make_pipeline(Normalizer("l1"), _DEEP), "regression", "plain", name="NormalizerBranches"),
    _case(make_pipeline(StandardScaler(), FastICA(3, random_state=1), lm.Ridge()),
          "regression", "plain", name="IcaRidge"),
    _case(make_pipeline(FactorAnalysis(3), _LOGISTIC), "multi", "plain", name="FactorLogistic"),
    _case(make_pipeline(StandardScaler(), Nystroem(n_components=30, random_state=1), lm.Ridge()),
          "regression", "plain", name="NystroemRidge"),
    _case(KernelRidge(kernel="rbf"), "regression", "plain"),
    _case(MultiOutputClassifier(_LOGISTIC), "kinds", "plain"),
    _case(MultiOutputClassifier(_TREE), "labels", "grid"),
    _case(ClassifierChain(_LOGISTIC), "labels", "plain"),
    _case(ClassifierChain(_TREE), "labels", "grid", name="ClassifierChainTree"),
    _case(OneVsRestClassifier(_LOGISTIC), "labels", "plain"),
    _case(en.RandomForestClassifier(15, random_state=1), "kinds", "missing", name="KindsForest"),
    _case(en.ExtraTreesClassifier(15, random_state=1), "labels", "grid"),
    _case(KNeighborsClassifier(5), "kinds", "plain"),
    _case(MLPClassifier(hidden_layer_sizes=(16,), max_iter=60, random_state=1),
          "labels", "plain"),
    _mixed(lm.LogisticRegression(max_iter=300), "binary", "missing"),
    _mixed(en.RandomForestRegressor(15, random_state=1), "regression", "missing"),
    _mixed(en.GradientBoostingClassifier(n_estimators=15, random_state=1), "multi", "grid"),
]  # fmt: skip
CASES += sklearn_texts.CASES

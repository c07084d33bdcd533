"""XGBoost: JSON, UBJSON and pickles, by objective and kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import xgboost as xgb

from scripts.parity_cases.case import Case, Columns, Trained, classified, flagged, table, target_of


def _case(
    objective: str, data: str, form: str = "ubj", is_quick: bool = False, **options: Any
) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        parameters = {"objective": objective, "nthread": 1, "max_depth": 5} | options
        if objective.startswith("multi"):
            parameters["num_class"] = 3
        target = target_of(objective, y)
        data_matrix = xgb.DMatrix(x, target)
        if objective.startswith("rank"):
            data_matrix.set_group([20] * (len(x) // 20))
        if objective == "survival:aft":
            data_matrix.set_float_info("label_lower_bound", target)
            data_matrix.set_float_info("label_upper_bound", target * 2)
        rounds = 1 if "num_parallel_tree" in options else 40
        booster = xgb.train(parameters, data_matrix, num_boost_round=rounds)

        def save(folder: Path) -> Path:
            path = folder / f"model.{form}"
            if form == "joblib":
                joblib.dump(booster, path)
            else:
                booster.save_model(path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            predicted = booster.inplace_predict(rows["input"])
            if objective == "multi:softmax":
                return {"label": predicted.astype(np.int64)}
            if objective == "multi:softprob":
                return classified([0, 1, 2], predicted)
            if objective == "binary:logistic":
                return classified([0, 1], predicted)
            return {"prediction": predicted}

        frame = booster.trees_to_dataframe()
        return Trained(save, {"input": x}, answer, frame.Split.dropna().to_numpy(float))

    name = objective + "".join(f"+{key}" for key in options)
    return Case("xgboost", name, data, train, is_quick)


def _categories(rng: np.random.Generator) -> Trained:
    x, y = table(rng, "plain")
    cities = ["Bern", "Oslo", "Rome", "Split"]
    frame = pd.DataFrame({"n": x[:, 0], "city": pd.Categorical(rng.choice(cities, len(x)))})
    model = xgb.XGBRegressor(n_estimators=30, n_jobs=1, enable_categorical=True)
    model.fit(frame, y + frame.city.cat.codes)

    def save(folder: Path) -> Path:
        path = folder / "model.joblib"
        joblib.dump(model, path)
        return path

    def answer(rows: Columns) -> dict[str, np.ndarray]:
        known = [c if c in cities else None for c in rows["city"][:, 0]]
        asked = pd.DataFrame({"n": rows["n"][:, 0], "city": pd.Categorical(known, cities)})
        return {"prediction": model.predict(asked)}

    city = np.array([*cities, "Paris"], dtype=object)[rng.integers(0, 5, len(x))]
    return Trained(save, {"n": x[:, :1], "city": city[:, None]}, answer)


def _wrapped(model: Any, objective: str, data: str, shift: float = 0.0) -> Case:
    """A model of the scikit-learn interface: early stopping, an estimated base score, missing."""

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        target = target_of(objective, y) + shift
        if getattr(model, "missing", None) == -999:
            x[rng.random(x.shape) < 0.1] = -999
        more = {"eval_set": [(x[600:], target[600:])], "verbose": False} if (
            model.early_stopping_rounds
        ) else {}  # fmt: skip
        model.fit(x[:600], target[:600], **more)

        def save(folder: Path) -> Path:
            path = folder / "model.joblib"
            joblib.dump(model, path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            if not hasattr(model, "predict_proba"):
                return {"prediction": np.asarray(model.predict(rows["input"]))}
            return classified(model.classes_, np.asarray(model.predict_proba(rows["input"])))

        frame = model.get_booster().trees_to_dataframe()
        return Trained(save, {"input": x}, answer, frame.Split.dropna().to_numpy(float))

    name = f"{objective}+{type(model).__name__}" + (
        "+early" if model.early_stopping_rounds else ""
    ) + ("+shifted" if shift else "")  # fmt: skip
    return Case("xgboost", name, data, train)


def _several(strategy: str, data: str) -> Case:
    """Several labels a row: a tree for each, or leaves with a number for each."""

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        model = xgb.XGBClassifier(multi_strategy=strategy, **_SMALL).fit(x, target_of("labels", y))

        def save(folder: Path) -> Path:
            path = folder / "model.ubj"
            model.save_model(path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            return flagged(np.asarray(model.predict_proba(rows["input"])))

        split = np.zeros(0)
        if strategy == "one_output_per_tree":
            split = model.get_booster().trees_to_dataframe().Split.dropna().to_numpy(float)
        return Trained(save, {"input": x}, answer, split)

    return Case("xgboost", f"binary:logistic+labels+{strategy}", data, train)


def _linear(objective: str, data: str) -> Case:
    """Weights in place of trees; the library refuses infinity for them."""

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        parameters = {"objective": objective, "booster": "gblinear", "nthread": 1}
        if objective.startswith("multi"):
            parameters["num_class"] = 3
        booster = xgb.train(parameters, xgb.DMatrix(x, target_of(objective, y)), num_boost_round=20)

        def save(folder: Path) -> Path:
            path = folder / "model.json"
            booster.save_model(path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            predicted = booster.predict(xgb.DMatrix(rows["input"]))
            if objective.startswith("multi"):
                return classified([0, 1, 2], predicted)
            if objective == "binary:logistic":
                return classified([0, 1], predicted)
            return {"prediction": predicted}

        return Trained(save, {"input": x}, answer, is_infinity_taken=False, largest=20.0)

    return Case("xgboost", f"{objective}+gblinear", data, train)


_SMALL: dict[str, Any] = {"n_estimators": 40, "n_jobs": 1, "max_depth": 4, "random_state": 1}
CASES = [
    _case("binary:logistic", "missing"),
    _case("binary:logistic", "grid", form="json", base_score=0.2),
    _case("multi:softprob", "plain", form="joblib"),
    _case("multi:softmax", "missing", is_quick=True),
    _case("reg:squarederror", "grid"),
    _case("reg:squarederror", "wide"),
    _case("count:poisson", "missing"),
    _case("reg:tweedie", "plain"),
    _case("reg:gamma", "grid", form="json"),
    _case("reg:squarederror", "plain", booster="dart", rate_drop=0.3),
    Case("xgboost", "reg:squarederror", "categories", _categories),
    _case("binary:logistic", "wide", scale_pos_weight=4.0),
    _case("binary:logistic", "plain", num_parallel_tree=30, subsample=0.7, eta=1.0),
    _case("binary:logitraw", "grid"),
    _case("binary:hinge", "missing"),
    _case("multi:softprob", "grid", booster="dart", rate_drop=0.2),
    _case("reg:logistic", "plain", form="json"),
    _case("reg:squaredlogerror", "grid", base_score=0.5),
    _case("reg:pseudohubererror", "missing"),
    _case("reg:absoluteerror", "plain", form="json"),
    _case("reg:quantileerror", "grid", quantile_alpha=0.8),
    _case("count:poisson", "grid", form="json", max_delta_step=0.7),
    _case("rank:ndcg", "grid"),
    _case("rank:pairwise", "missing", form="json"),
    _case("survival:cox", "plain"),
    _case("survival:aft", "grid"),
    _case("reg:squarederror", "missing", form="json", monotone_constraints="(1,0,0,-1,0,0)"),
    _wrapped(
        xgb.XGBClassifier(early_stopping_rounds=5, **_SMALL | {"n_estimators": 300}),
        "binary",
        "missing",
    ),
    _wrapped(
        xgb.XGBRegressor(early_stopping_rounds=5, **_SMALL | {"n_estimators": 300}),
        "regression",
        "grid",
    ),
    _wrapped(xgb.XGBRegressor(**_SMALL), "regression", "plain", shift=1000.0),
    _wrapped(xgb.XGBRegressor(missing=-999, **_SMALL), "regression", "grid"),
    _wrapped(xgb.XGBClassifier(objective="multi:softmax", **_SMALL), "multi", "missing"),
    _wrapped(xgb.XGBRFClassifier(**_SMALL), "binary", "grid"),
    _several("one_output_per_tree", "missing"),
    _several("one_output_per_tree", "grid"),
    _several("multi_output_tree", "plain"),
    _linear("reg:squarederror", "missing"),
    _linear("binary:logistic", "plain"),
    _linear("multi:softprob", "missing"),
    _linear("count:poisson", "plain"),
]

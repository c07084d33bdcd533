"""XGBoost: JSON, UBJSON and pickles, by objective and kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import xgboost as xgb

from scripts.parity_cases.case import Case, Columns, Trained, classified, table, target_of


def _case(
    objective: str, data: str, form: str = "ubj", is_quick: bool = False, **options: Any
) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        parameters = {"objective": objective, "nthread": 1, "max_depth": 5} | options
        if objective.startswith("multi"):
            parameters["num_class"] = 3
        target = target_of(objective, y)
        booster = xgb.train(parameters, xgb.DMatrix(x, target), num_boost_round=40)

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
]

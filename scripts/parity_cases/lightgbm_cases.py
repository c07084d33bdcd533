"""LightGBM: text files, by objective and kind of data; linear trees are served natively."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import lightgbm as lgb
import numpy as np
import pandas as pd

from scripts.parity_cases.case import Case, Columns, Trained, classified, table, target_of

_FAST: dict[str, Any] = {"num_iterations": 40, "verbosity": -1, "num_threads": 1, "seed": 1}


def _case(objective: str, data: str, is_quick: bool = False, **options: Any) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        parameters = _FAST | {"objective": objective} | options
        if objective.startswith("multi"):
            parameters["num_class"] = 3
        target = target_of(objective, y)
        group = [20] * (len(x) // 20) if "rank" in objective else None
        booster = lgb.train(parameters, lgb.Dataset(x, target, group=group))

        def save(folder: Path) -> Path:
            path = folder / "model.txt"
            booster.save_model(path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            predicted = np.asarray(booster.predict(rows["input"], num_threads=1))
            if objective.startswith("multi"):
                return classified([0, 1, 2], predicted)
            if objective == "binary":
                return classified([0, 1], predicted)
            return {"prediction": predicted}

        frame = booster.trees_to_dataframe()
        return Trained(save, {"input": x}, answer, frame.threshold.dropna().to_numpy(float))

    words = [value if isinstance(value, str) else key for key, value in options.items()][:2]
    name = objective + "".join(f"+{word}" for word in words)
    return Case("lightgbm", name, data, train, is_quick)


def _stopped(rng: np.random.Generator) -> Trained:
    """Many rounds, of which the best is far before the last: predict uses those up to it."""
    x, y = table(rng, "plain")
    y = y + rng.normal(0, 2, len(y))
    parameters = _FAST | {"objective": "regression", "num_iterations": 300, "learning_rate": 0.3}
    data = lgb.Dataset(x[:600], y[:600])
    booster = lgb.train(
        parameters, data, valid_sets=[data.create_valid(x[600:], y[600:])],
        callbacks=[lgb.early_stopping(5, verbose=False)],
    )  # fmt: skip

    def save(folder: Path) -> Path:
        path = folder / "model.txt"
        booster.save_model(path)
        return path

    def answer(rows: Columns) -> dict[str, np.ndarray]:
        return {"prediction": np.asarray(booster.predict(rows["input"], num_threads=1))}

    assert booster.best_iteration < 100
    frame = booster.trees_to_dataframe()
    return Trained(save, {"input": x}, answer, frame.threshold.dropna().to_numpy(float))


def _categories(*, is_text: bool, objective: str) -> Callable[[np.random.Generator], Trained]:
    """A pandas column of categories, by their names or by their numbers; some were never seen."""

    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, "missing")
        known: list[Any] = ["Bern", "Oslo", "Rome", "Split", "日本"] if is_text else [7, -1, 3, 42]
        city = rng.choice(np.array(known, dtype=object), len(x))
        frame = pd.DataFrame({"n": x[:, 0], "city": pd.Categorical(city, known)})
        y = np.nan_to_num(y) + frame.city.cat.codes
        model_class = lgb.LGBMClassifier if objective == "binary" else lgb.LGBMRegressor
        model = model_class(
            n_estimators=30, n_jobs=1, verbose=-1, min_child_samples=5, random_state=1
        )
        model.fit(frame, (y > 1.5).astype(int) if objective == "binary" else y)

        def save(folder: Path) -> Path:
            path = folder / "model.joblib"
            joblib.dump(model, path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            cells = [c if c in known else None for c in rows["city"][:, 0].tolist()]
            asked = pd.DataFrame({"n": rows["n"][:, 0], "city": pd.Categorical(cells, known)})
            if objective == "binary":
                return classified([0, 1], np.asarray(model.predict_proba(asked)))
            return {"prediction": np.asarray(model.predict(asked))}

        unseen = "Paris" if is_text else 99
        # Whole numbers as objects, too: what is drawn beside them must be one of them.
        asked = np.where(rng.random(len(x)) < 0.2, unseen, city).astype(object)
        return Trained(save, {"n": x[:, :1], "city": asked[:, None]}, answer)

    return train


CASES = [
    _case("binary", "grid", is_quick=True),
    _case("binary", "missing"),
    _case("multiclass", "plain"),
    _case("multiclassova", "missing"),
    _case("regression", "grid"),
    _case("regression", "wide"),
    _case("poisson", "plain"),
    _case("tweedie", "missing"),
    _case("gamma", "grid"),
    _case("quantile", "plain"),
    _case("mape", "wide"),
    _case("regression", "missing", zero_as_missing=True),
    _case("regression", "plain", is_quick=True, linear_tree=True),
    _case("binary", "plain", boosting="dart", drop_rate=0.3),
    _case("binary", "missing", boosting="rf", bagging_freq=1, bagging_fraction=0.7),
    _case("binary", "wide", data_sample_strategy="goss"),
    _case("binary", "grid", sigmoid=2.0, is_unbalance=True),
    _case("binary", "missing", linear_tree=True),
    _case("multiclass", "grid", boosting="dart"),
    _case("multiclass", "wide", extra_trees=True),
    _case("multiclassova", "grid"),
    _case("regression", "plain", reg_sqrt=True),
    _case("regression", "missing", boosting="rf", bagging_freq=1, bagging_fraction=0.6),
    _case("regression", "grid", monotone_constraints=[1, 0, 1, -1, 0, 0]),
    _case("regression_l1", "plain"),
    _case("huber", "missing"),
    _case("fair", "grid"),
    _case("cross_entropy", "plain"),
    _case("cross_entropy_lambda", "missing"),
    _case("lambdarank", "grid"),
    _case("rank_xendcg", "missing"),
    _case("poisson", "grid"),
    _case("quantile", "missing", alpha=0.9),
    Case("lightgbm", "regression:early_stopping", "plain", _stopped),
    Case(
        "lightgbm", "regression", "pandas-text", _categories(is_text=True, objective="regression")
    ),
    Case("lightgbm", "binary", "pandas-text", _categories(is_text=True, objective="binary")),
    Case("lightgbm", "binary", "pandas-number", _categories(is_text=False, objective="binary")),
]

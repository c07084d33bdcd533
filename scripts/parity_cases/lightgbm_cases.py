"""LightGBM: text files, by objective and kind of data; linear trees are served natively."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np

from scripts.parity_cases.case import Case, Columns, Trained, classified, table, target_of

_FAST: dict[str, Any] = {"num_iterations": 40, "verbosity": -1, "num_threads": 1, "seed": 1}


def _case(objective: str, data: str, is_quick: bool = False, **options: Any) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        parameters = _FAST | {"objective": objective} | options
        if objective.startswith("multi"):
            parameters["num_class"] = 3
        booster = lgb.train(parameters, lgb.Dataset(x, target_of(objective, y)))

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

    name = objective + "".join(f"+{key}" for key in options)
    return Case("lightgbm", name, data, train, is_quick)


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
]

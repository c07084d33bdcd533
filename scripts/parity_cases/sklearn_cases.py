"""scikit-learn: pickles of trees and linear models, alone and at the end of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scripts.parity_cases.case import Case, Columns, Trained, table, target_of


def _case(model: Any, objective: str, data: str, is_quick: bool = False) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        model.fit(x, target_of(objective, y))

        def save(folder: Path) -> Path:
            path = folder / "model.joblib"
            joblib.dump(model, path)
            return path

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            if not hasattr(model, "predict_proba"):
                return {"prediction": model.predict(rows["input"])}
            return {
                "label": model.predict(rows["input"]),
                "probabilities": model.predict_proba(rows["input"]),
            }

        is_nan_taken = data == "missing"
        return Trained(
            save, {"input": x}, answer, is_nan_taken=is_nan_taken, is_infinity_taken=False
        )

    return Case("sklearn", f"{type(model).__name__}:{objective}", data, train, is_quick)


CASES = [
    _case(RandomForestClassifier(30, random_state=1), "multi", "grid", is_quick=True),
    _case(ExtraTreesRegressor(30, random_state=1), "regression", "plain"),
    _case(GradientBoostingClassifier(n_estimators=30, random_state=1), "binary", "grid"),
    _case(HistGradientBoostingClassifier(max_iter=30), "multi", "missing"),
    _case(HistGradientBoostingRegressor(max_iter=30), "regression", "grid"),
    _case(make_pipeline(StandardScaler(), LogisticRegression()), "binary", "plain"),
]

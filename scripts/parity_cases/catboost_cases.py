"""CatBoost: binary files; models with categories are served natively."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas as pd

from scripts.parity_cases.case import Case, Columns, Trained, classified, flagged, table, target_of

_FAST: dict[str, Any] = {
    "iterations": 40, "depth": 5, "verbose": 0, "allow_writing_files": False, "thread_count": 1,
    "random_seed": 1,
}  # fmt: skip
_CLASSES = ("Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll")
_LABELS = ("MultiLogloss", "MultiCrossEntropy")


def _trained(model: Any, loss: str, rows: Any, frame: Any, borders: np.ndarray) -> Trained:
    kind = "RawFormulaVal"
    name = loss.partition(":")[0]
    if name in _CLASSES + _LABELS:
        kind = "Probability"
    elif loss.startswith(("Poisson", "Tweedie")):
        kind = "Exponent"

    def save(folder: Path) -> Path:
        path = folder / "model.cbm"
        model.save_model(str(path))
        return path

    def answer(rows: Columns) -> dict[str, np.ndarray]:
        predicted = model.predict(frame(rows), prediction_type=kind, thread_count=1)
        if name in _LABELS:
            return flagged(predicted)
        return classified(model.classes_, predicted) if name in _CLASSES else {
            "prediction": predicted
        }  # fmt: skip

    return Trained(save, rows, answer, borders)


def _case(loss: str, data: str, is_quick: bool = False, kept: str = "", **options: Any) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        x, y = table(rng, data)
        model = catboost.CatBoost(_FAST | {"loss_function": loss} | options)
        if "group_id" in kept:
            model.fit(x, target_of(loss, y), group_id=np.arange(len(x)) // 20)
        elif kept:
            model.fit(
                x[:600], target_of(loss, y)[:600], eval_set=(x[600:], target_of(loss, y)[600:])
            )
        else:
            model.fit(x, target_of(loss, y))
        borders = np.concatenate([np.array(b) for b in model.get_borders().values()])
        return _trained(model, loss, {"input": x}, lambda rows: rows["input"], borders)

    words = [kept] if kept else [v if isinstance(v, str) else k for k, v in options.items()]
    name = loss.partition(":")[0] + "".join(f"+{word}" for word in words)
    return Case("catboost", name, data, train, is_quick)


def _categories(rng: np.random.Generator) -> Trained:
    x, y = table(rng, "plain")
    city = rng.choice(["Bern", "Oslo", "Rome", "日本"], len(x)).astype(object)
    frame = pd.DataFrame({"n": x[:, 0], "city": city})
    model = catboost.CatBoost(_FAST | {"loss_function": "Logloss"})
    model.fit(frame, (y + (city == "Rome") > 0.3).astype(int), cat_features=["city"])

    def asked(rows: Columns) -> pd.DataFrame:
        return pd.DataFrame({"n": rows["n"][:, 0], "city": rows["city"][:, 0]})

    more = np.where(rng.random(len(x)) < 0.2, "Paris", city).astype(object)
    rows = {"n": x[:, :1], "city": more[:, None]}
    return _trained(model, "Logloss", rows, asked, np.zeros(0))


CASES = [
    _case("Logloss", "grid"),
    _case("Logloss", "missing", nan_mode="Max"),
    _case("MultiClass", "plain"),
    _case("MultiClassOneVsAll", "missing", grow_policy="Lossguide"),
    _case("RMSE", "grid"),
    _case("RMSE", "wide"),
    _case("Poisson", "plain"),
    _case("Tweedie:variance_power=1.5", "missing"),
    Case("catboost", "Logloss", "categories", _categories, is_quick=True),
    _case("Logloss", "missing", nan_mode="Min"),
    _case("Logloss", "wide", grow_policy="Depthwise"),
    _case("CrossEntropy", "plain"),
    _case("MultiClass", "missing", nan_mode="Max"),
    _case("MultiClassOneVsAll", "grid"),
    _case("MAE", "plain"),
    _case("Quantile:alpha=0.8", "grid"),
    _case("Huber:delta=1.0", "missing"),
    _case("LogCosh", "plain"),
    _case("Expectile:alpha=0.7", "grid"),
    _case("Lq:q=3", "plain"),
    _case(
        "RMSE",
        "missing",
        kept="eval_set",
        iterations=300,
        use_best_model=True,
        learning_rate=0.5,
        od_wait=5,
    ),
    _case("YetiRank", "grid", kept="group_id"),
    _case("QueryRMSE", "plain", kept="group_id"),
    _case("MultiLogloss", "missing"),
    _case("MultiCrossEntropy", "grid"),
    _case("Focal:focal_alpha=0.3;focal_gamma=2.0", "plain"),
    _case("GroupQuantile:alpha=0.3", "grid", kept="group_id"),
]

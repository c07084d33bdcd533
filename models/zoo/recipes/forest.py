"""A random forest over numbers and a text column: a pipeline through Optuna, pushed as a pickle."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import optuna
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from models.zoo.recipes import common


def suggest(trial: optuna.Trial) -> common.Parameters:
    """Return the parameters of one trial."""
    return {
        "max_depth": trial.suggest_int("max_depth", 3, 14),
        "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, 30, log=True),
        "max_features": trial.suggest_float("max_features", 0.3, 1.0),
    }


def pipeline(**parameters: Any) -> Pipeline:
    """Return holes filled, the city as columns of 0 and 1, then the forest."""
    columns = ColumnTransformer([
        ("numbers", SimpleImputer(strategy="median"), list(common.NUMBERS)),
        ("city", OneHotEncoder(handle_unknown="ignore"), [common.CITY]),
    ])  # fmt: skip
    forest = RandomForestClassifier(80, n_jobs=1, random_state=1, **parameters)
    return Pipeline([("columns", columns), ("forest", forest)])


def train(parameters: common.Parameters, table: Path) -> Pipeline:
    """Fit the pipeline."""
    rows = common.read_table(table).train
    return pipeline(**parameters).fit(common.frame(rows), rows[common.TARGET].to_numpy())


def score(parameters: common.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = common.read_table(table).valid
    predicted = train(parameters, table).predict_proba(common.frame(valid))[:, 1]
    return common.auc(valid[common.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = common.options(argv, "loans-forest")
    table = common.write_table(options.folder / "loans.parquet", options.rows)
    best = common.search(suggest, score, table, options)
    file = options.folder / "forest.joblib"
    joblib.dump(train(best, table), file)
    columns = common.read_table(table).valid.select(*common.NUMBERS, common.CITY)
    common.push(options, file, common.write_sample(columns, options.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

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

from models.zoo.recipes import loans, shared


def suggest(trial: optuna.Trial) -> shared.Parameters:
    """Return the parameters of one trial."""
    return {
        "max_depth": trial.suggest_int("max_depth", 3, 14),
        "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, 30, log=True),
        "max_features": trial.suggest_float("max_features", 0.3, 1.0),
    }


def pipeline(**parameters: Any) -> Pipeline:
    """Return holes filled, the city as columns of 0 and 1, then the forest."""
    columns = ColumnTransformer([
        ("numbers", SimpleImputer(strategy="median"), list(loans.NUMBERS)),
        ("city", OneHotEncoder(handle_unknown="ignore"), [loans.CITY]),
    ])  # fmt: skip
    forest = RandomForestClassifier(80, n_jobs=1, random_state=1, **parameters)
    return Pipeline([("columns", columns), ("forest", forest)])


def train(parameters: shared.Parameters, table: Path) -> Pipeline:
    """Fit the pipeline."""
    rows = loans.read_table(table).train
    return pipeline(**parameters).fit(loans.frame(rows), rows[loans.TARGET].to_numpy())


def score(parameters: shared.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = loans.read_table(table).valid
    predicted = train(parameters, table).predict_proba(loans.frame(valid))[:, 1]
    return loans.auc(valid[loans.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = shared.options(argv, "loans-forest", __doc__)
    table = options.table("loans", loans.write_table)
    best = shared.search(suggest, score, table, options)
    file = options.folder / "forest.joblib"
    joblib.dump(train(best, table), file)
    columns = loans.read_table(table).valid.select(*loans.NUMBERS, loans.CITY)
    return shared.push(options, file, loans.write_sample(columns, options.folder))


if __name__ == "__main__":
    raise SystemExit(main())

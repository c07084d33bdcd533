"""LightGBM: from Parquet through Optuna to a pushed text model."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import lightgbm
import numpy as np
import optuna

from models.zoo.recipes import loans, shared


def suggest(trial: optuna.Trial) -> shared.Parameters:
    """Return the parameters of one trial."""
    return {
        "num_leaves": trial.suggest_int("num_leaves", 8, 96, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
        "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 5, 60),
        "feature_fraction": trial.suggest_float("feature_fraction", 0.5, 1.0),
    }


def train(parameters: shared.Parameters, table: Path) -> lightgbm.Booster:
    """Fit with early stopping: the file keeps the best iteration, and so does what is served."""
    rows = loans.read_table(table)
    data = lightgbm.Dataset(
        loans.matrix(rows.train), rows.train[loans.TARGET].to_numpy(),
        feature_name=list(loans.NUMBERS),
    )  # fmt: skip
    valid = data.create_valid(loans.matrix(rows.valid), rows.valid[loans.TARGET].to_numpy())
    fixed = {"objective": "binary", "metric": "auc", "num_threads": 1, "verbosity": -1, "seed": 1}
    return lightgbm.train(
        {**fixed, **parameters}, data, num_boost_round=300, valid_sets=[valid],
        callbacks=[lightgbm.early_stopping(20, verbose=False)],
    )  # fmt: skip


def score(parameters: shared.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = loans.read_table(table).valid
    predicted = train(parameters, table).predict(loans.matrix(valid), num_threads=1)
    return loans.auc(valid[loans.TARGET], np.asarray(predicted))


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = shared.options(argv, "loans-lightgbm", __doc__)
    table = options.table("loans", loans.write_table)
    best = shared.search(suggest, score, table, options)
    file = options.folder / "lightgbm.txt"
    train(best, table).save_model(file)
    valid = loans.read_table(table).valid
    return shared.push(
        options, file, loans.write_sample(valid.select(loans.NUMBERS), options.folder)
    )


if __name__ == "__main__":
    raise SystemExit(main())

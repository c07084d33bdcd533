"""LightGBM: from Parquet through Optuna to a pushed text model."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import lightgbm
import numpy as np
import optuna

from models.zoo.recipes import common


def suggest(trial: optuna.Trial) -> common.Parameters:
    """Return the parameters of one trial."""
    return {
        "num_leaves": trial.suggest_int("num_leaves", 8, 96, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
        "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 5, 60),
        "feature_fraction": trial.suggest_float("feature_fraction", 0.5, 1.0),
    }


def train(parameters: common.Parameters, table: Path) -> lightgbm.Booster:
    """Fit with early stopping: the file keeps the best iteration, and so does what is served."""
    rows = common.read_table(table)
    data = lightgbm.Dataset(
        common.matrix(rows.train), rows.train[common.TARGET].to_numpy(),
        feature_name=list(common.NUMBERS),
    )  # fmt: skip
    valid = data.create_valid(common.matrix(rows.valid), rows.valid[common.TARGET].to_numpy())
    fixed = {"objective": "binary", "metric": "auc", "num_threads": 1, "verbosity": -1, "seed": 1}
    return lightgbm.train(
        fixed | parameters, data, num_boost_round=300, valid_sets=[valid],
        callbacks=[lightgbm.early_stopping(20, verbose=False)],
    )  # fmt: skip


def score(parameters: common.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = common.read_table(table).valid
    predicted = train(parameters, table).predict(common.matrix(valid), num_threads=1)
    return common.auc(valid[common.TARGET], np.asarray(predicted))


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = common.options(argv, "loans-lightgbm")
    table = common.write_table(options.folder / "loans.parquet", options.rows)
    best = common.search(suggest, score, table, options)
    file = options.folder / "lightgbm.txt"
    train(best, table).save_model(file)
    valid = common.read_table(table).valid
    common.push(options, file, common.write_sample(valid.select(common.NUMBERS), options.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""CatBoost with a text column: from Parquet through Optuna to a pushed ``.cbm`` file."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import catboost
import optuna
import polars as pl

from models.zoo.recipes import common


def suggest(trial: optuna.Trial) -> common.Parameters:
    """Return the parameters of one trial."""
    return {
        "depth": trial.suggest_int("depth", 3, 8),
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.3, log=True),
        "l2_leaf_reg": trial.suggest_float("l2_leaf_reg", 1.0, 20.0, log=True),
    }


def train(parameters: common.Parameters, table: Path) -> catboost.CatBoost:
    """Fit with early stopping; the file holds the trees up to the best iteration."""
    rows = common.read_table(table)
    model = catboost.CatBoost({
        "loss_function": "Logloss", "iterations": 200, "od_wait": 20, "verbose": 0,
        "thread_count": 1, "random_seed": 1, "allow_writing_files": False, **parameters,
    })  # fmt: skip
    return model.fit(pool(rows.train), eval_set=pool(rows.valid), use_best_model=True)


def pool(rows: pl.DataFrame) -> catboost.Pool:
    """Return the rows as CatBoost takes them."""
    return catboost.Pool(
        common.frame(rows), rows[common.TARGET].to_numpy(), cat_features=[common.CITY]
    )


def score(parameters: common.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = common.read_table(table).valid
    predicted = train(parameters, table).predict(pool(valid), thread_count=1)
    return common.auc(valid[common.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = common.options(argv, "loans-catboost")
    table = common.write_table(options.folder / "loans.parquet", options.rows)
    best = common.search(suggest, score, table, options)
    file = options.folder / "catboost.cbm"
    train(best, table).save_model(str(file))
    columns = common.read_table(table).valid.select(*common.NUMBERS, common.CITY)
    common.push(options, file, common.write_sample(columns, options.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

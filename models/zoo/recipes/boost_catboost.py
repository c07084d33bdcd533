"""CatBoost with a text column: from Parquet through Optuna to a pushed ``.cbm`` file."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import catboost
import optuna
import polars as pl

from models.zoo.recipes import loans, shared


def suggest(trial: optuna.Trial) -> shared.Parameters:
    """Return the parameters of one trial."""
    return {
        "depth": trial.suggest_int("depth", 3, 8),
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.3, log=True),
        "l2_leaf_reg": trial.suggest_float("l2_leaf_reg", 1.0, 20.0, log=True),
    }


def train(parameters: shared.Parameters, table: Path) -> catboost.CatBoost:
    """Fit with early stopping; the file holds the trees up to the best iteration."""
    rows = loans.read_table(table)
    model = catboost.CatBoost({
        "loss_function": "Logloss", "iterations": 200, "od_wait": 20, "verbose": 0,
        "thread_count": 1, "random_seed": 1, "allow_writing_files": False, **parameters,
    })  # fmt: skip
    return model.fit(pool(rows.train), eval_set=pool(rows.valid), use_best_model=True)


def pool(rows: pl.DataFrame) -> catboost.Pool:
    """Return the rows as CatBoost takes them."""
    return catboost.Pool(
        loans.frame(rows), rows[loans.TARGET].to_numpy(), cat_features=[loans.CITY]
    )


def score(parameters: shared.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = loans.read_table(table).valid
    predicted = train(parameters, table).predict(pool(valid), thread_count=1)
    return loans.auc(valid[loans.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = shared.options(argv, "loans-catboost", __doc__)
    table = options.table("loans", loans.write_table)
    best = shared.search(suggest, score, table, options)
    file = options.folder / "catboost.cbm"
    train(best, table).save_model(str(file))
    columns = loans.read_table(table).valid.select(*loans.NUMBERS, loans.CITY)
    return shared.push(options, file, loans.write_sample(columns, options.folder))


if __name__ == "__main__":
    raise SystemExit(main())

"""XGBoost: from Parquet through Optuna to a pushed UBJSON model."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import optuna
import xgboost

from models.zoo.recipes import common


def suggest(trial: optuna.Trial) -> common.Parameters:
    """Return the parameters of one trial."""
    return {
        "max_depth": trial.suggest_int("max_depth", 2, 8),
        "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
        "min_child_weight": trial.suggest_float("min_child_weight", 1.0, 30.0, log=True),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
    }


def train(parameters: common.Parameters, table: Path) -> xgboost.XGBClassifier:
    """Fit with early stopping; the classifier's file says which iteration was the best."""
    rows = common.read_table(table)
    model = xgboost.XGBClassifier(
        n_estimators=300, early_stopping_rounds=20, n_jobs=1, random_state=1, **parameters
    )
    valid = (common.matrix(rows.valid), rows.valid[common.TARGET].to_numpy())
    target = rows.train[common.TARGET].to_numpy()
    return model.fit(common.matrix(rows.train), target, eval_set=[valid], verbose=False)


def score(parameters: common.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = common.read_table(table).valid
    predicted = train(parameters, table).predict_proba(common.matrix(valid))[:, 1]
    return common.auc(valid[common.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = common.options(argv, "loans-xgboost")
    table = common.write_table(options.folder / "loans.parquet", options.rows)
    best = common.search(suggest, score, table, options)
    file = options.folder / "xgboost.ubj"
    model = train(best, table)
    model.get_booster().feature_names = list(common.NUMBERS)
    model.save_model(file)
    valid = common.read_table(table).valid
    common.push(options, file, common.write_sample(valid.select(common.NUMBERS), options.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

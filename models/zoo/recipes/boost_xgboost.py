"""XGBoost: from Parquet through Optuna to a pushed UBJSON model."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the library reads it: one core a trial

from collections.abc import Sequence
from pathlib import Path

import optuna
import xgboost

from models.zoo.recipes import loans, shared


def suggest(trial: optuna.Trial) -> shared.Parameters:
    """Return the parameters of one trial."""
    return {
        "max_depth": trial.suggest_int("max_depth", 2, 8),
        "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
        "min_child_weight": trial.suggest_float("min_child_weight", 1.0, 30.0, log=True),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
    }


def train(parameters: shared.Parameters, table: Path) -> xgboost.XGBClassifier:
    """Fit with early stopping; the classifier's file says which iteration was the best."""
    rows = loans.read_table(table)
    model = xgboost.XGBClassifier(
        n_estimators=300, early_stopping_rounds=20, n_jobs=1, random_state=1, **parameters
    )
    valid = (loans.matrix(rows.valid), rows.valid[loans.TARGET].to_numpy())
    target = rows.train[loans.TARGET].to_numpy()
    return model.fit(loans.matrix(rows.train), target, eval_set=[valid], verbose=False)


def score(parameters: shared.Parameters, table: Path) -> float:
    """Return how good a model of these parameters is."""
    valid = loans.read_table(table).valid
    predicted = train(parameters, table).predict_proba(loans.matrix(valid))[:, 1]
    return loans.auc(valid[loans.TARGET], predicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push."""
    options = shared.options(argv, "loans-xgboost", __doc__)
    table = options.table("loans", loans.write_table)
    best = shared.search(suggest, score, table, options)
    file = options.folder / "xgboost.ubj"
    model = train(best, table)
    model.get_booster().feature_names = list(loans.NUMBERS)
    model.save_model(file)
    valid = loans.read_table(table).valid
    return shared.push(
        options, file, loans.write_sample(valid.select(loans.NUMBERS), options.folder)
    )


if __name__ == "__main__":
    raise SystemExit(main())

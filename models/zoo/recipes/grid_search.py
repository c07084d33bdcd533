"""The forest again, by scikit-learn's own GridSearchCV: no Optuna, the same push."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a library reads it: one core a fit

from collections.abc import Sequence

import joblib
from sklearn.model_selection import GridSearchCV

from models.zoo.recipes import loans, shared
from models.zoo.recipes.forest import pipeline

GRID = {"forest__max_depth": [4, 8, 12], "forest__min_samples_leaf": [1, 10]}


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train, push. ``--trials`` cuts the grid short."""
    options = shared.options(argv, "loans-grid", __doc__)
    table = options.table("loans", loans.write_table)
    rows = loans.read_table(table)
    grid = GRID if options.trials >= 6 else {"forest__max_depth": [4, 8][: options.trials]}
    # verbose: a line for each fit, for this may take minutes at a larger size.
    search = GridSearchCV(pipeline(), grid, scoring="roc_auc", cv=3, n_jobs=options.jobs, verbose=2)
    search.fit(loans.frame(rows.train), rows.train[loans.TARGET].to_numpy())
    scores = search.predict_proba(loans.frame(rows.valid))[:, 1]
    print(f"best {search.best_params_}: {loans.auc(rows.valid[loans.TARGET], scores):.4f}")
    file = options.folder / "grid.joblib"
    joblib.dump(search.best_estimator_, file)
    columns = rows.valid.select(*loans.NUMBERS, loans.CITY)
    return shared.push(options, file, loans.write_sample(columns, options.folder))


if __name__ == "__main__":
    raise SystemExit(main())

"""Models of tables, trained in seconds on data that scikit-learn ships, or on a made-up table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from models.zoo.artefact import Artefact, answers, listed_rows, named_rows, write_csv

SEED: Final = 7
EXAMPLE_ROWS: Final = 3


def build_fraud(folder: Path) -> Artefact:
    """Tell one class in two from 30 numbers, as fraud detection does: LightGBM on cancer data.

    Saved as LightGBM's own text; the second version has more trees.
    """
    import lightgbm
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = [name.replace(" ", "_") for name in data.feature_names]
    paths = []
    for version, rounds in ((1, 200), (2, 300)):
        booster = lightgbm.train(
            {
                "objective": "binary", "learning_rate": 0.05, "num_leaves": 15, "verbosity": -1,
                "seed": SEED, "deterministic": True, "num_threads": 1,
            },
            lightgbm.Dataset(data.data, data.target, feature_name=names),
            num_boost_round=rounds,
        )  # fmt: skip
        paths.append(folder / f"fraud-{version}.txt")
        booster.save_model(paths[-1])
    rows = data.data[:EXAMPLE_ROWS]
    first = lightgbm.Booster(model_file=paths[0])
    native = np.asarray(first.predict(rows.astype(np.float32), num_threads=1))
    return Artefact(
        "fraud", paths[0], "lightgbm",
        sample=write_csv(folder / "fraud.csv", names, data.data.tolist()),
        next_path=paths[1],
        example_request=named_rows(names, rows.tolist()),
        expected=answers({"probabilities": np.stack([1 - native, native], axis=1)}),
    )  # fmt: skip


def build_digits(folder: Path) -> Artefact:
    """Tell which digit an 8 x 8 picture shows: a pipeline of scaler and logistic regression."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    names = [f"pixel_{i}" for i in range(x.shape[1])]
    return Artefact(
        "digits", _dump(model, folder / "digits.joblib"), "sklearn",
        sample=write_csv(folder / "digits.csv", names, x.astype(int).tolist()),
        next_path=None,
        example_request=listed_rows(x[:EXAMPLE_ROWS]),
        expected=_classified(model, x[:EXAMPLE_ROWS]),
    )  # fmt: skip


def build_wine(folder: Path) -> Artefact:
    """Tell where a wine is from: a random forest with class names as text."""
    from sklearn.datasets import load_wine
    from sklearn.ensemble import RandomForestClassifier

    data = load_wine(as_frame=True)
    target = data.target_names[data.target]
    model = RandomForestClassifier(n_estimators=200, random_state=SEED).fit(data.data, target)
    rows = data.data.iloc[[0, 70, 150]]
    names = list(data.data.columns)
    return Artefact(
        "wine", _dump(model, folder / "wine.joblib"), "sklearn",
        sample=write_csv(folder / "wine.csv", names, data.data.to_numpy().tolist()),
        next_path=None,
        example_request=named_rows(names, rows.to_numpy().tolist()),
        expected=_classified(model, rows),
    )  # fmt: skip


def build_diabetes(folder: Path) -> Artefact:
    """Tell how far diabetes goes on within a year: gradient boosting, one number."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor

    data = load_diabetes(as_frame=True)
    model = GradientBoostingRegressor(n_estimators=150, max_depth=3, random_state=SEED)
    model.fit(data.data, data.target)
    rows = data.data.iloc[:EXAMPLE_ROWS]
    names = list(data.data.columns)
    return Artefact(
        "diabetes", _dump(model, folder / "diabetes.joblib"), "sklearn",
        sample=write_csv(folder / "diabetes.csv", names, data.data.to_numpy().tolist()),
        next_path=None,
        example_request=named_rows(names, rows.to_numpy().tolist()),
        expected=answers({"prediction": model.predict(rows)}),
    )  # fmt: skip


def build_churn(folder: Path) -> Artefact:
    """Tell who will leave: a pipeline over numbers and texts, both with missing values."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table, target = churn_table(1500)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    model = make_pipeline(
        ColumnTransformer(
            [
                ("numbers", numbers, ["age", "monthly_charge", "tenure_months"]),
                ("texts", texts, ["city", "plan"]),
                ("tickets", "passthrough", ["tickets"]),
            ]
        ),
        LogisticRegression(max_iter=1000),
    ).fit(table, target)
    # One row without a number, one without a text, one that has everything.
    rows = table.loc[
        [
            table.index[table.monthly_charge.isna() & table.city.notna()][0],
            table.index[table.city.isna() & table.monthly_charge.notna()][0],
            table.index[table.city.notna() & table.monthly_charge.notna()][0],
        ]
    ]
    names = list(table.columns)
    return Artefact(
        "churn", _dump(model, folder / "churn.joblib"), "sklearn",
        sample=write_csv(folder / "churn.csv", names, table.to_numpy(dtype=object).tolist()),
        next_path=None,
        example_request=named_rows(names, rows.to_numpy(dtype=object).tolist()),
        expected=_classified(model, rows),
    )  # fmt: skip


def churn_table(rows: int) -> tuple[Any, Any]:
    """Return a made-up table of customers and whether each one left, the same each time."""
    import pandas as pd

    rng = np.random.default_rng(SEED)
    tenure = rng.integers(1, 72, size=rows)
    charge = np.round(rng.gamma(4.0, 15.0, size=rows), 2)
    tickets = rng.poisson(1.0, size=rows)
    city = np.array(["Bergen", "Oslo", "Tromsø", "Trondheim"], dtype=object)[
        rng.integers(0, 4, size=rows)
    ]
    plan = np.array(["basic", "family", "pro"], dtype=object)[rng.integers(0, 3, size=rows)]
    pull = charge / 40 - tenure / 20 + tickets * 0.6 + (plan == "basic") + (city == "Oslo") * 0.5
    has_left = pull + rng.normal(size=rows) > 1.0
    charge[rng.random(rows) < 0.08] = np.nan
    city[rng.random(rows) < 0.08] = None
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 90, size=rows), "tenure_months": tenure,
            "monthly_charge": charge, "tickets": tickets, "city": city, "plan": plan,
        }
    )  # fmt: skip
    return table, np.where(has_left, "leaves", "stays")


def _classified(model: Any, rows: Any) -> dict[str, Any]:
    return answers({"label": model.predict(rows), "probabilities": model.predict_proba(rows)})


def _dump(model: Any, path: Path) -> Path:
    import joblib

    joblib.dump(model, path)
    return path

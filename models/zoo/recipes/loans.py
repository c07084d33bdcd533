"""The table of the recipes for trees: loans, some of which were not paid back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

NUMBERS: Final = ("age", "income", "debt", "months", "late")
CITY: Final = "city"
TARGET: Final = "defaulted"
_CITIES: Final = ("Graz", "Linz", "Salzburg", "Wien")
_SAMPLE_ROWS: Final = 2000


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to learn from and rows to judge by."""

    train: pl.DataFrame
    valid: pl.DataFrame


def write_table(path: Path, rows: int, seed: int = 0) -> Path:
    """Write loans with holes, a text column and a target; ``--data`` names a table of your own."""
    rng = np.random.default_rng(seed)
    age, income = rng.normal(42, 12, rows), rng.lognormal(10, 0.6, rows)
    debt, late = rng.lognormal(8, 1.2, rows), rng.poisson(0.7, rows)
    city = rng.choice(_CITIES, rows)
    risk = 1.4 * np.log1p(debt) - np.log(income) + 0.6 * late - 0.02 * age + (city == "Wien")
    table = pl.DataFrame({
        "age": age.round(1), "income": income.round(2), "debt": debt.round(2),
        "months": rng.integers(1, 120, rows).astype(np.float64), "late": late.astype(np.float64),
        CITY: city, TARGET: (risk + rng.logistic(0, 0.7, rows) > np.median(risk)).astype(np.int64),
    })  # fmt: skip
    holes = pl.Series(rng.random(rows) < 0.05)
    income_with_holes = pl.when(holes).then(None).otherwise(pl.col("income")).alias("income")
    table.with_columns(income_with_holes).write_parquet(path)
    return path


def read_table(path: Path, share: float = 0.8) -> Split:
    """Read the Parquet file; the last rows are those to judge by."""
    table = pl.read_parquet(path)
    cut = int(len(table) * share)
    return Split(table.head(cut), table.tail(len(table) - cut))


def matrix(table: pl.DataFrame) -> np.ndarray[Any, Any]:
    """Return the number columns as ``(rows, features)`` float32; holes are NaN."""
    return table.select(NUMBERS).cast(pl.Float32).fill_null(float("nan")).to_numpy()


def frame(table: pl.DataFrame) -> Any:
    """Return numbers and city as pandas, for libraries that go by column names."""
    import pandas as pd

    return pd.DataFrame({name: table[name].to_numpy() for name in (*NUMBERS, CITY)})


def auc(target: pl.Series, scores: np.ndarray[Any, Any]) -> float:
    """Return the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(target.to_numpy(), scores))


def write_sample(columns: pl.DataFrame, folder: Path) -> Path:
    """Write rows for the proof of the conversion as CSV."""
    path = folder / "sample.csv"
    columns.head(_SAMPLE_ROWS).write_csv(path)
    return path

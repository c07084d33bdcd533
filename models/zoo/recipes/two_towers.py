"""A recommender of two towers: which items a user takes.

``python -m models.zoo.recipes.two_towers --rows 20000 --trials 8``
Columns: ``user`` and ``item`` (whole numbers from 0), ``taken`` (0 or 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import optuna
import polars as pl
import torch
from torch import Tensor, nn

from models.zoo.networks import TwoTowers
from models.zoo.recipes.nets import Recipe, Trained, fit, run
from models.zoo.recipes.shared import Parameters


def make(rows: int) -> pl.DataFrame:
    """Return who took what: tastes of two dimensions."""
    rng = np.random.default_rng(1)
    users, items = max(rows // 40, 20), max(rows // 80, 20)
    taste, kind = rng.normal(size=(users, 2)), rng.normal(size=(items, 2))
    user, item = rng.integers(0, users, rows), rng.integers(0, items, rows)
    taken = ((taste[user] * kind[item]).sum(axis=1) > 0).astype(np.int64)
    return pl.DataFrame({"user": user, "item": item, "taken": taken})


def suggest(trial: optuna.Trial) -> Parameters:
    """Return the parameters of one trial."""
    return {
        "width": trial.suggest_categorical("width", [8, 16, 32]),
        "rate": trial.suggest_float("rate", 3e-3, 3e-2, log=True),
    }


def train(data: Path, parameters: Parameters) -> Trained:
    """Train; tables end at the highest id seen, and the server refuses one beyond."""
    frame = pl.read_parquet(data)
    user, item = (_ids(frame, name) for name in ("user", "item"))
    taken = torch.from_numpy(frame["taken"].cast(pl.Float32).to_numpy(writable=True))
    torch.manual_seed(1)
    model = TwoTowers(int(user.max()) + 1, int(item.max()) + 1, width=parameters["width"])
    loss = fit(model, [user, item], taken, nn.functional.binary_cross_entropy, epochs=15,
               rate=parameters["rate"])  # fmt: skip
    return Trained(model, loss, {"user": user, "item": item})


def _ids(frame: pl.DataFrame, name: str) -> Tensor:
    column = frame[name].cast(pl.Int64)
    lowest = column.min()
    if column.null_count() or not isinstance(lowest, int) or lowest < 0:
        raise SystemExit(f"column {name!r}: ids are whole numbers from 0, none of them missing")
    return torch.from_numpy(column.to_numpy(writable=True))


RECIPE = Recipe("two_towers", make, suggest, train)

if __name__ == "__main__":
    sys.exit(run(RECIPE, about=__doc__))

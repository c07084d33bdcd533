"""TabNet on a table of numbers with two classes.

``python -m models.zoo.recipes.tabnet --rows 4000 --trials 8``
Columns: ``label`` (0 or 1), every other one a number; missing ones become the column's mean.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import optuna
import polars as pl
import torch
from torch import nn

from models.zoo.networks import TabNet
from models.zoo.recipes.nets import Recipe, Trained, fit, run
from models.zoo.recipes.shared import Parameters


def make(rows: int) -> pl.DataFrame:
    """Return ten numbers a row, of which three decide."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 10)).astype(np.float32)
    label = (x[:, 0] * x[:, 1] + x[:, 2] + rng.normal(scale=0.3, size=rows) > 0).astype(np.int64)
    return pl.DataFrame({f"f{i}": x[:, i] for i in range(10)} | {"label": label})


def suggest(trial: optuna.Trial) -> Parameters:
    """Return the parameters of one trial."""
    return {
        "width": trial.suggest_categorical("width", [8, 16, 32]),
        "steps": trial.suggest_int("steps", 2, 4),
        "gamma": trial.suggest_float("gamma", 1.0, 2.0),
        "rate": trial.suggest_float("rate", 3e-3, 3e-2, log=True),
    }


def train(data: Path, parameters: Parameters) -> Trained:
    """Train; the model that is saved answers chances."""
    frame = pl.read_parquet(data)
    numbers = frame.select(
        pl.exclude("label").cast(pl.Float32).fill_nan(None).fill_null(strategy="mean")
    )
    x = torch.from_numpy(numbers.to_numpy(writable=True))
    label = torch.from_numpy(frame["label"].cast(pl.Int64).to_numpy(writable=True))
    torch.manual_seed(1)
    model = TabNet(
        x.shape[1],
        2,
        width=parameters["width"],
        steps=parameters["steps"],
        gamma=parameters["gamma"],
    )
    loss = fit(model, [x], label, nn.functional.cross_entropy, epochs=15, rate=parameters["rate"])
    return Trained(nn.Sequential(model, nn.Softmax(dim=-1)).eval(), loss, {"input": x})


RECIPE = Recipe("tabnet", make, suggest, train)

if __name__ == "__main__":
    sys.exit(run(RECIPE, about=__doc__))

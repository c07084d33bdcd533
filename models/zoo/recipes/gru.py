"""A GRU over the last events of each customer, which says whether the customer leaves.

``python -m models.zoo.recipes.gru --rows 20000 --trials 8``
Columns: ``customer``, ``time`` (orders the events), ``left`` (0 or 1, the same in all rows of a
customer), every other one a number of the event.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import optuna
import polars as pl
import torch
from torch import Tensor, nn

from models.zoo.recipes.nets import Recipe, Trained, fit, run
from models.zoo.recipes.shared import Parameters

STEPS: Final = 12


class LastEvents(nn.Module):
    """Takes ``(rows, steps, features)``; zeros stand before a short history."""

    def __init__(self, mean: Tensor, scale: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.gru = nn.GRU(len(mean), width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, events: Tensor) -> Tensor:
        """Return the chance to leave, ``(rows,)``."""
        states, _ = self.gru((events - self.mean) / self.scale)
        return torch.sigmoid(self.head(states[:, -1]).squeeze(-1))


def make(rows: int) -> pl.DataFrame:
    """Return events: customers who leave spend less and less."""
    rng = np.random.default_rng(1)
    customers = max(rows // STEPS, 10)
    customer = np.repeat(np.arange(customers), STEPS)
    time = np.tile(np.arange(STEPS), customers)
    left = np.repeat(rng.integers(0, 2, customers), STEPS)
    spent = 50 + rng.normal(scale=8, size=len(time)) - 2.5 * time * left
    visits = rng.poisson(3, len(time)).astype(np.float64)
    return pl.DataFrame(
        {"customer": customer, "time": time, "spent": spent, "visits": visits, "left": left}
    )


def sequences(frame: pl.DataFrame) -> tuple[Tensor, Tensor]:
    """Return the last STEPS events of each customer, and who left."""
    features = [name for name in frame.columns if name not in ("customer", "time", "left")]
    grouped = (
        frame.sort("customer", "time")
        .group_by("customer", maintain_order=True)
        .agg(pl.col(features).cast(pl.Float32).fill_null(0.0).tail(STEPS), pl.col("left").last())
    )
    events = np.zeros((len(grouped), STEPS, len(features)), np.float32)
    for place, name in enumerate(features):
        for row, values in enumerate(grouped[name]):
            events[row, STEPS - len(values) :, place] = values.to_numpy()
    left = grouped["left"].cast(pl.Float32).to_numpy(writable=True)
    return torch.from_numpy(events), torch.from_numpy(left)


def suggest(trial: optuna.Trial) -> Parameters:
    """Return the parameters of one trial."""
    return {
        "width": trial.suggest_categorical("width", [8, 16, 32]),
        "rate": trial.suggest_float("rate", 3e-3, 3e-2, log=True),
    }


def train(data: Path, parameters: Parameters) -> Trained:
    """Train on sequences."""
    events, left = sequences(pl.read_parquet(data))
    torch.manual_seed(1)
    scale = events.std(dim=(0, 1)).clamp(min=1e-6)
    model = LastEvents(events.mean(dim=(0, 1)), scale, parameters["width"])
    loss = fit(model, [events], left, nn.functional.binary_cross_entropy, epochs=15,
               rate=parameters["rate"])  # fmt: skip
    return Trained(model, loss, {"events": events})


RECIPE = Recipe("gru", make, suggest, train)

if __name__ == "__main__":
    sys.exit(run(RECIPE, about=__doc__))

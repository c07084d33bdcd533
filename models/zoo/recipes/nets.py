"""What the recipes of networks share: a training on one thread, and the program that is pushed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import optuna
import polars as pl
import torch
from torch import Tensor, nn

from models.zoo.networks import save_program
from models.zoo.recipes import shared
from models.zoo.recipes.shared import Parameters

_SAMPLE_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, its loss on rows kept from the training (lower is better), and a few rows.

    ``sample``: by argument of ``forward``, in its order.
    """

    model: nn.Module
    loss: float
    sample: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """``make``: rows to try the recipe with. ``train`` must be a function of a module.

    ``train`` takes the Parquet file and parameters; ``suggest`` asks a trial for parameters.
    """

    name: str
    make: Callable[[int], pl.DataFrame]
    suggest: Callable[[optuna.Trial], Parameters]
    train: Callable[[Path, Parameters], Trained]


def run(recipe: Recipe, argv: Sequence[str] | None = None, about: str | None = None) -> int:
    """Search, train with the best parameters, save and push; return the exit code."""
    options = shared.options(argv, recipe.name.replace("_", "-"), about)
    table = options.table(recipe.name, lambda path, rows: recipe.make(rows).write_parquet(path))
    _one_thread()  # the same threads give the same sums, and so the loss that was found
    score = partial(_score, recipe.train)
    best = shared.search(recipe.suggest, score, table, options, _one_thread)
    trained = recipe.train(table, best)
    print(f"best loss {trained.loss:.4f} with {json.dumps(best)}")
    file = options.folder / f"{recipe.name}.pt2"
    save_program(trained.model, [each[:2] for each in trained.sample.values()], file)
    sample = options.folder / f"{recipe.name}.json"
    rows = {name: each[:_SAMPLE_ROWS].tolist() for name, each in trained.sample.items()}
    sample.write_text(json.dumps(rows), encoding="utf-8")
    return shared.push(options, file, sample, {**best, "loss": f"{trained.loss:.6f}"})


def _one_thread() -> None:
    torch.set_num_threads(1)


def _score(
    train: Callable[[Path, Parameters], Trained], parameters: Parameters, table: Path
) -> float:
    return -train(table, parameters).loss


def fit(
    model: nn.Module, inputs: Sequence[Tensor], target: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor], *, epochs: int, rate: float, batch: int = 256,
) -> float:  # fmt: skip
    """Train on four fifths of the rows and return the loss on the last fifth."""
    torch.manual_seed(1)
    rows = len(target)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    kept, used = order[: rows // 5], order[rows // 5 :]
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(epochs):
        model.train()
        shuffled = used[torch.randperm(len(used))]
        # The last one may be a single row, which batch normalisation cannot take.
        for part in shuffled.split(batch)[: max(1, len(used) // batch)]:
            optimiser.zero_grad()
            loss_of(model(*(each[part] for each in inputs)), target[part]).backward()
            optimiser.step()
    model.eval()
    with torch.no_grad():
        return float(loss_of(model(*(each[kept] for each in inputs)), target[kept]))

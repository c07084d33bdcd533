"""What the recipes of networks share: arguments, a search on all cores, and the push."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import optuna
import polars as pl
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from models.zoo.networks import save_program

Settings: TypeAlias = Mapping[str, Any]
# Before a process starts: libraries read these once, when they are imported.
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
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
    """``make``: rows to try the recipe with. ``train`` and ``space`` must be found by name.

    ``train`` takes the Parquet file and settings; ``space`` asks a trial for settings.
    """

    name: str
    make: Callable[[int], pl.DataFrame]
    space: Callable[[optuna.Trial], Settings]
    train: Callable[[Path, Settings], Trained]


def run(recipe: Recipe, arguments: Sequence[str] | None = None) -> int:
    """Search, train with the best settings, save and push; return the exit code."""
    options = _parser(recipe.name).parse_args(arguments)
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    data: Path = options.data or folder / f"{recipe.name}.parquet"
    if options.data is None:
        recipe.make(options.rows).write_parquet(data)
    _one_thread()  # the same threads give the same sums, and so the loss that was found
    best = search(recipe, data, options.trials)
    trained = recipe.train(data, best)
    sys.stdout.write(f"best loss {trained.loss:.4f} with {json.dumps(best)}\n")
    model = folder / f"{recipe.name}.pt2"
    save_program(trained.model, [each[:2] for each in trained.sample.values()], model)
    sample = folder / f"{recipe.name}.json"
    rows = {name: each[:_SAMPLE_ROWS].tolist() for name, each in trained.sample.items()}
    sample.write_text(json.dumps(rows), encoding="utf-8")
    command = ["push", recipe.name, str(model), "--sample", str(sample), "--alias", "candidate"]
    for key, value in {**best, "loss": f"{trained.loss:.6f}"}.items():
        command += ["--meta", f"{key}={value}"]
    if options.push_to is None:
        sys.stdout.write(f"to push it: ramrack {' '.join(command)}\n")
        return 0
    command += ["--admin-url", options.push_to]
    return subprocess.run([sys.executable, "-m", "serving.cli", *command], check=False).returncode


def search(recipe: Recipe, data: Path, trials: int) -> dict[str, Any]:
    """Return the best settings: as many trials at once as there are cores, each on one thread."""
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))
    cores = min(len(os.sched_getaffinity(0)), trials)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )  # fmt: skip
    with (
        ProcessPoolExecutor(
            cores, mp_context=multiprocessing.get_context("spawn"), initializer=_one_thread
        ) as pool,
        Progress(*columns) as progress,
    ):
        task = progress.add_task(f"{recipe.name}: trials", total=trials, best="")
        running: dict[Any, tuple[optuna.Trial, Settings]] = {}
        asked = 0
        while asked < trials or running:
            while asked < trials and len(running) < cores:
                trial = study.ask()
                settings = recipe.space(trial)
                running[pool.submit(_loss, recipe.train, data, settings)] = (trial, settings)
                asked += 1
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                trial, settings = running.pop(future)
                trial.set_user_attr("settings", dict(settings))
                study.tell(trial, future.result())
                progress.update(task, advance=1, best=f"best loss {study.best_value:.4f}")
    found: dict[str, Any] = study.best_trial.user_attrs["settings"]
    return found


def _one_thread() -> None:
    torch.set_num_threads(1)


def _loss(train: Callable[[Path, Settings], Trained], data: Path, settings: Settings) -> float:
    return train(data, settings).loss


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


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m models.zoo.recipes.{name}")
    parser.add_argument("--data", type=Path, help="a Parquet file with the recipe's columns")
    parser.add_argument("--rows", type=_count, default=4000, help="rows to make up without --data")
    parser.add_argument("--trials", type=_count, default=8, help="settings to try (default 8)")
    parser.add_argument("--out", type=Path, default=Path("recipe"), help="folder for the files")
    parser.add_argument("--push-to", metavar="URL", help="admin plane to push to")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from 1 to 100000000")
    return int(text)

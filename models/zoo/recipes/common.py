"""What the recipes share: a table to learn from, a search on all cores, and the push."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import optuna
import polars as pl
from rich.console import Console
from rich.progress import Progress

NUMBERS: Final = ("age", "income", "debt", "months", "late")
CITY: Final = "city"
TARGET: Final = "defaulted"
_CITIES: Final = ("Graz", "Linz", "Salzburg", "Wien")
_SAMPLE_ROWS: Final = 2000

Parameters: TypeAlias = dict[str, Any]
# Takes the parameters of a trial and the Parquet file; larger is better. Runs in a process of its
# own, so it must be a function of a module.
Score: TypeAlias = Callable[[Parameters, Path], float]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. ``jobs``: trials at once; ``model``: its name on the server."""

    rows: int
    trials: int
    jobs: int
    folder: Path
    model: str
    is_pushing: bool


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to learn from and rows to judge by."""

    train: pl.DataFrame
    valid: pl.DataFrame


def options(argv: Sequence[str] | None, model: str) -> Options:
    """Read the command line of a recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=5000, help="rows of the table (default 5000)")
    add("--trials", type=int, default=12, help="parameters to try (default 12)")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)),
        help="trials at once, one core each (default: all cores; 1: in this process)")  # fmt: skip
    add("--folder", type=Path, default=Path(".ramrack/recipes"), help="where files are written")
    add("--model", default=model, help=f"name on the server (default {model})")
    add("--no-push", dest="is_pushing", action="store_false", help="only train and write")
    found = Options(**vars(parser.parse_args(argv)))
    found.folder.mkdir(parents=True, exist_ok=True)
    return found


def write_table(path: Path, rows: int, seed: int = 0) -> Path:
    """Write loans with holes, a text column and a target; put a table of your own here instead."""
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


def search(
    suggest: Callable[[optuna.Trial], Parameters], score: Score, table: Path, options: Options
) -> Parameters:
    """Return the best parameters of ``options.trials``; each trial has one core for itself."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True)
    )
    best: dict[int, Parameters] = {}
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(console=Console(stderr=True)))
        task = bar.add_task("searching", total=options.trials)
        pool = None
        if options.jobs > 1:
            # Not forked: a library that has started threads does not survive that.
            pool = stack.enter_context(
                ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"))
            )
        running: dict[Future[float], optuna.Trial] = {}
        asked = 0
        while asked < options.trials or running:
            while asked < options.trials and len(running) < options.jobs:
                trial = study.ask()
                asked += 1
                best[trial.number] = parameters = suggest(trial)
                running[_begun(pool, score, parameters, table)] = trial
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                study.tell(running.pop(future), future.result())
                bar.update(task, advance=1, description=f"best {study.best_value:.4f}")
    return best[study.best_trial.number]


def _begun(
    pool: ProcessPoolExecutor | None, score: Score, parameters: Parameters, table: Path
) -> Future[float]:
    if pool is not None:
        return pool.submit(score, parameters, table)
    future: Future[float] = Future()
    future.set_result(score(parameters, table))
    return future


def auc(target: pl.Series, scores: np.ndarray[Any, Any]) -> float:
    """Return the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(target.to_numpy(), scores))


def write_sample(columns: pl.DataFrame, folder: Path) -> Path:
    """Write rows for the proof of the conversion as CSV."""
    path = folder / "sample.csv"
    columns.head(_SAMPLE_ROWS).write_csv(path)
    return path


def push(options: Options, file: Path, sample: Path) -> None:
    """Push a model file under the alias ``candidate``, with the command that a person would use."""
    if not options.is_pushing:
        print(f"wrote {file}; not pushed")
        return
    beside = Path(sys.executable).with_name("ramrack")
    command = str(beside) if beside.exists() else shutil.which("ramrack") or "ramrack"
    subprocess.run(
        [command, "push", options.model, str(file), "--sample", str(sample),
         "--alias", "candidate", "--meta", f"rows={options.rows}"],
        check=True,
    )  # fmt: skip

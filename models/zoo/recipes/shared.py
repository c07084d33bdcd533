"""What every recipe shares: its command line, a search on all cores, and the push."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import optuna
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Parameters: TypeAlias = Mapping[str, Any]
# Takes the parameters of a trial and the Parquet file; larger is better. Runs in a process of its
# own, so it must be a function of a module.
Score: TypeAlias = Callable[[Parameters, Path], float]
# Before a process of a trial starts: libraries read these once, when they are imported.
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. ``jobs``: trials at once; ``model``: its name on the server.

    ``data``: a Parquet file; None where rows are to be made up.
    """

    data: Path | None
    rows: int
    trials: int
    jobs: int
    folder: Path
    model: str
    admin_url: str | None
    is_pushing: bool

    def table(self, name: str, make: Callable[[Path, int], object]) -> Path:
        """Return the Parquet file to learn from, made up by ``make`` unless one was named."""
        if self.data is not None:
            return self.data
        made = self.folder / f"{name}.parquet"
        make(made, self.rows)
        return made


def options(argv: Sequence[str] | None, model: str, about: str | None) -> Options:
    """Read the command line of a recipe; ``about``: what it is, for ``--help``."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="FILE", help="a Parquet file with the recipe's columns")
    add("--rows", type=_count, default=4000, help="rows to make up without --data (default 4000)")
    add("--trials", type=_count, default=8, help="parameters to try (default 8)")
    add("--jobs", type=_count, default=len(os.sched_getaffinity(0)),
        help="trials at once, one core each (default: all cores; 1: in this process)")  # fmt: skip
    add("--folder", type=Path, default=Path(".ramrack/recipes"), help="where files are written")
    add("--model", default=model, help=f"name on the server (default {model})")
    add("--admin-url", metavar="URL", help="the server to push to, as for `ramrack push`")
    add("--no-push", dest="is_pushing", action="store_false", help="print the push, do not do it")
    found = Options(**vars(parser.parse_args(argv)))
    found.folder.mkdir(parents=True, exist_ok=True)
    return found


def search(
    suggest: Callable[[optuna.Trial], Parameters], score: Score, table: Path, options: Options,
    begin: Callable[[], None] | None = None,
) -> Parameters:  # fmt: skip
    """Return the best parameters of ``options.trials``; each trial has one core for itself.

    ``begin`` is called at the start of each process of trials.
    """
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True)
    )
    tried: dict[int, Parameters] = {}
    with ExitStack() as stack:
        bar = stack.enter_context(_progress())
        task = bar.add_task("searching", total=options.trials, best="")
        pool = None
        if options.jobs > 1:
            # Not forked: a library that has started threads does not survive that.
            pool = stack.enter_context(
                ProcessPoolExecutor(
                    min(options.jobs, options.trials), mp_context=get_context("spawn"),
                    initializer=begin,
                )
            )  # fmt: skip
        running: dict[Future[float], optuna.Trial] = {}
        while len(tried) < options.trials or running:
            while len(tried) < options.trials and len(running) < options.jobs:
                trial = study.ask()
                tried[trial.number] = parameters = suggest(trial)
                running[_begun(pool, score, parameters, table)] = trial
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                study.tell(running.pop(future), future.result())
                bar.update(task, advance=1, best=f"best {study.best_value:.4f}")
    return tried[study.best_trial.number]


def push(options: Options, file: Path, sample: Path, meta: Parameters | None = None) -> int:
    """Push a model file under the alias ``candidate``, with the command that a person would use.

    Returns its exit code. ``meta``: what the version is to remember beside the number of rows.
    """
    command = [
        "push", options.model, str(file), "--sample", str(sample), "--alias", "candidate",
    ]  # fmt: skip
    rows = options.data.name if options.data is not None else options.rows
    for key, value in {"rows": rows, **(meta or {})}.items():
        command += ["--meta", f"{key}={value}"]
    if options.admin_url is not None:
        command += ["--admin-url", options.admin_url]
    if not options.is_pushing:
        print(f"wrote {file}; to push it: ramrack {shlex.join(command)}")
        return 0
    beside = Path(sys.executable).with_name("ramrack")
    ramrack = str(beside) if beside.exists() else shutil.which("ramrack") or "ramrack"
    return subprocess.run([ramrack, *command], check=False).returncode


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"), console=Console(stderr=True),
    )  # fmt: skip


def _begun(
    pool: ProcessPoolExecutor | None, score: Score, parameters: Parameters, table: Path
) -> Future[float]:
    if pool is not None:
        return pool.submit(score, parameters, table)
    future: Future[float] = Future()
    future.set_result(score(parameters, table))
    return future


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from 1 to 100000000")
    return int(text)

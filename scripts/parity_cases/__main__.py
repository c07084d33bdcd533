"""Train the cases and write, for each, the model file, rows, and the library's answers.

In ``OUT``: ``index.json`` with one entry a case (``name``, ``family``, ``file``, ``rows``,
``alone_us`` and ``batch_us``: microseconds a row of the library, one row a call and all in one);
beside each model ``rows.npz`` (``in:NAME`` and ``out:NAME``; texts as fixed-width unicode). Of
networks also the library's answers to each row alone, ``alone:NAME``, and those of the same network
in double precision, ``exact:NAME``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pkgutil
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import scripts.parity_cases as package
from scripts.parity_cases.case import Case, Columns, Trained

_SEED = 11
_SINGLE_CALLS = 100
_SPECIAL = (0.0, -0.0, 1e-30, -1e-30)


def found_cases(families: list[str] | None) -> tuple[list[Case], list[str]]:
    """Return the cases of every family whose library is here, and the families that are not."""
    cases: list[Case] = []
    missing: list[str] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        family = module.removesuffix("_cases")
        if not module.endswith("_cases") or (families and family not in families):
            continue
        if importlib.util.find_spec(family) is None:
            missing.append(family)
            continue
        cases += importlib.import_module(f"{package.__name__}.{module}").CASES
    return cases, missing


def hard_rows(trained: Trained, count: int, rng: np.random.Generator) -> Columns:
    """Return rows: a third of training, a third random, a third at and beside the thresholds."""
    third = count // 3 + 1
    split = trained.thresholds.astype(np.float32)
    with np.errstate(over="ignore"):
        down, up = np.nextafter(split, np.float32(-np.inf)), np.nextafter(split, np.float32(np.inf))
    special = [*_SPECIAL, trained.largest, -trained.largest]
    special += [np.nan] if trained.is_nan_taken else []
    special += [np.inf, -np.inf] if trained.is_infinity_taken else []
    edges = np.concatenate([split, down, up, np.array(special, dtype=np.float32)])
    edges = edges if trained.is_infinity_taken else edges[~np.isinf(edges)]
    rows = {}
    seen = rng.integers(0, len(next(iter(trained.rows.values()))), size=count - 2 * third)
    for name, column in trained.rows.items():
        if column.dtype == object:
            rows[name] = column[rng.integers(0, len(column), size=count)]
            continue
        shape = (third, column.shape[1])
        rows[name] = np.concatenate(
            [column[seen], rng.normal(size=shape) * 2, rng.choice(edges, size=shape)]
        ).astype(np.float32)
    return rows


def library_us(trained: Trained, rows: Columns) -> tuple[float, float]:
    """Return microseconds a row of the library: one row a call, and all rows in one call."""
    count = len(next(iter(rows.values())))
    times = []
    for at in range(min(_SINGLE_CALLS, count)):
        one = {name: column[at : at + 1] for name, column in rows.items()}
        start = time.perf_counter()
        trained.answer(one)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    trained.answer(rows)
    return statistics.median(times) * 1e6, (time.perf_counter() - start) / count * 1e6


def _alone(trained: Trained, rows: Columns) -> Columns:
    count = len(next(iter(rows.values())))
    each = [
        trained.answer({name: column[at : at + 1] for name, column in rows.items()})
        for at in range(count)
    ]
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


def write(case: Case, folder: Path, count: int) -> dict[str, object]:
    """Train one case, write its files, and return its entry of the index."""
    rng = np.random.default_rng(_SEED)
    trained = case.train(rng)
    rows = hard_rows(trained, count, rng)
    folder.mkdir(parents=True)
    answers = trained.answer(rows)
    alone_us, batch_us = library_us(trained, rows)
    arrays = {f"in:{name}": column for name, column in rows.items()}
    arrays |= {f"out:{name}": np.asarray(column) for name, column in answers.items()}
    if trained.exact is not None:
        arrays |= {f"exact:{name}": column for name, column in trained.exact(rows).items()}
        arrays |= {f"alone:{name}": column for name, column in _alone(trained, rows).items()}
    plain = {k: v.astype(str) if v.dtype == object else v for k, v in arrays.items()}
    np.savez(folder / "rows.npz", **plain)
    return {
        "name": case.name, "family": case.family, "file": str(trained.save(folder)),
        "rows": str(folder / "rows.npz"), "alone_us": alone_us, "batch_us": batch_us,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.parity_cases", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--family", action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases, missing = found_cases(options.family)
    chosen = [case for case in cases if case.is_quick or not options.quick]
    entries = []
    for case in chosen:
        print(f"training {case.name}", file=sys.stderr, flush=True)
        entries.append(write(case, options.out / case.name, options.rows))
    index = {"cases": entries, "missing": missing}
    (options.out / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

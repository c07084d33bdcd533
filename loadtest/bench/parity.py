"""Parity: what is served over HTTP beside what the training library itself answers, row by row.

The cases are in ``scripts/parity_cases``, a file for each family of models. Each is trained there,
pushed by ``ramrack push`` and asked over HTTP; a third of the rows are training rows, a third
random, a third edges: every threshold as float32 with both neighbours, zeros, NaN, infinities.

A deep network may answer a row alone and among others further apart than the tolerance, by itself
and where it was trained: then there is no one answer to be as near to, and the judge is the same
network in double precision, from which what is served must be no further than the library is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from numpy.typing import NDArray

from loadtest.lab.bed import ROOT
from loadtest.lab.claims import Findings, Target, number
from loadtest.lab.machine import machine_lines
from loadtest.lab.processes import LabFailed
from loadtest.lab.ramrack import Ramrack, ramrack
from loadtest.lab.tensors import decode, encode

_TOLERANCE: Final = 1e-5
_ROWS_A_REQUEST: Final = 256
_SINGLE_REQUESTS: Final = 100
_TRAINING_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One case: how far apart, and microseconds a row of the library and over HTTP.

    ``difference``: the largest, relative to ``max(1, |native|)``. ``labels``: how many differ where
    the two best classes are not within twice the tolerance. ``own``: how far apart the library's
    answers to a row alone and among others are; 0 where they are the same by its kind.
    ``beside``: how far what is served is from double precision, by how far the library is.
    """

    name: str
    family: str
    runtime: str
    rows: int
    difference: float
    labels: int
    native_us: tuple[float, float]
    served_us: tuple[float, float]
    own: float = 0.0
    beside: float = math.inf


def main(argv: Sequence[str]) -> int:
    """Train, push, ask, compare; 1 if any case is further off than the tolerance."""
    options = _parser().parse_args(argv)
    findings = Findings("parity")
    for line in machine_lines():
        findings.say(line)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramrack-parity-")))
        index = _train(work / "cases", options)
        for family in index["missing"]:
            findings.doubt(f"{family} is not installed: its cases are left out")
        if not index["cases"]:
            raise LabFailed("there is no case to compare")
        server = stack.enter_context(ramrack(os.sched_getaffinity(0), work, "--workers", "1"))
        findings.say(f"\n{'case':<44} {'runtime':<8} {'rows':>5} {'difference':>10} {'labels':>6}"
                     f" {'native 1/all us':>16} {'HTTP 1/all us':>15}")  # fmt: skip
        compared = [_show(findings, _compare(server, entry, findings)) for entry in index["cases"]]
    _judge(findings, compared)
    return findings.finish(options.json)


def _judge(findings: Findings, compared: Sequence[Compared]) -> None:
    findings.say()
    for family in sorted({one.family for one in compared}):
        mine = [one for one in compared if one.family == family]
        cases = [one for one in mine if one.own <= _TOLERANCE]
        for one in mine:
            if one.own > _TOLERANCE:
                findings.claim(
                    f"{one.name}: served by library, from exact", Target("<=", 1, ""), [one.beside],
                    f"the library's own answers to a row are {one.own:.2g} apart, "
                    f"the served ones {one.difference:.2g} from them",
                )  # fmt: skip
        if not cases:
            continue
        worst = max(cases, key=lambda one: one.difference)
        findings.claim(
            f"{family}: largest difference", Target("<=", _TOLERANCE, ""), [worst.difference],
            f"{len(cases)} cases, {sum(one.rows for one in cases):,} rows; {worst.name}",
        )  # fmt: skip
        findings.claim(
            f"{family}: labels that differ", Target("<=", 0, ""),
            [sum(one.labels for one in mine)],
        )  # fmt: skip
    findings.measured["cases"] = [
        {"name": one.name, "runtime": one.runtime, "rows": one.rows,
         "difference": one.difference, "labels": one.labels,
         "own": one.own, "native_us": one.native_us, "served_us": one.served_us}
        for one in compared
    ]  # fmt: skip


def _train(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    folder.mkdir()
    command = [sys.executable, "-m", "scripts.parity_cases", str(folder),
               "--rows", str(options.rows)]  # fmt: skip
    command += ["--quick"] if options.quick else []
    command += [part for family in options.family or () for part in ("--family", family)]
    # Teams of threads that wait for each other on a busy machine took a thousand times as long.
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=ROOT, timeout=_TRAINING_S, env=alone)
    index: dict[str, Any] = json.loads((folder / "index.json").read_bytes())
    return index


def _compare(server: Ramrack, entry: dict[str, Any], findings: Findings) -> Compared:
    try:
        return _compared(server, entry)
    except LabFailed as error:  # one that fails is no reason to know nothing of the others
        findings.say(f"{entry['name']}: {error}")
        us = (entry["alone_us"], entry["batch_us"])
        return Compared(
            entry["name"], entry["family"], "none", 0, math.inf, 0, us, (math.inf, math.inf)
        )


def _compared(server: Ramrack, entry: dict[str, Any]) -> Compared:
    pushed = server.command("push", entry["name"], entry["file"], "--promote")
    with np.load(entry["rows"]) as arrays:
        inputs = {key[3:]: arrays[key] for key in arrays if key.startswith("in:")}
        native, alone, exact = (
            {key.removeprefix(kind): arrays[key] for key in arrays if key.startswith(kind)}
            for kind in ("out:", "alone:", "exact:")
        )
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        served, served_us = _ask(client, entry["name"], inputs)
    rows = len(next(iter(inputs.values())))
    difference, labels = differences(served, native)
    parity = pushed.get("parity") or {}
    return Compared(
        entry["name"], entry["family"],
        "native" if parity.get("precision") == "native" else "onnx", rows, difference, labels,
        (entry["alone_us"], entry["batch_us"]), served_us,
        *(library_itself(served, native, alone, exact) if exact else ()),
    )  # fmt: skip


def library_itself(
    served: dict[str, NDArray[Any]],
    native: dict[str, NDArray[Any]],
    alone: dict[str, NDArray[Any]],
    exact: dict[str, NDArray[Any]],
) -> tuple[float, float]:
    """Return how far apart the library's own answers are, and served by library, from exact."""
    of_library = max(differences(native, exact)[0], differences(alone, exact)[0])
    of_served = differences(served, exact)[0]
    own = differences(alone, native)[0]
    return own, of_served / of_library if of_library else (1.0 if not of_served else math.inf)


def _ask(
    client: httpx.Client, model: str, inputs: dict[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], tuple[float, float]]:
    """Return all answers, and microseconds a row: alone (median), and 256 rows a request."""
    declared = client.get(f"/v2/models/{model}").raise_for_status().json()["inputs"]
    datatypes = {spec["name"]: spec["datatype"] for spec in declared}
    rows = len(next(iter(inputs.values())))
    alone = [
        _infer(client, model, _part(inputs, at, 1), datatypes)[1]
        for at in range(min(_SINGLE_REQUESTS, rows))
    ]
    parts = []
    together = 0.0
    for at in range(0, rows, _ROWS_A_REQUEST):
        answer, seconds = _infer(client, model, _part(inputs, at, _ROWS_A_REQUEST), datatypes)
        parts.append(answer)
        together += seconds
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return whole, (statistics.median(alone) * 1e6, together / rows * 1e6)


def _part(inputs: dict[str, NDArray[Any]], at: int, rows: int) -> dict[str, NDArray[Any]]:
    return {name: array[at : at + rows] for name, array in inputs.items()}


def _infer(
    client: httpx.Client, model: str, part: dict[str, NDArray[Any]], datatypes: dict[str, str]
) -> tuple[dict[str, NDArray[Any]], float]:
    body, head_bytes = encode(part, datatypes)
    start = time.perf_counter()
    answer = client.post(
        f"/v2/models/{model}/infer", content=body,
        headers={"Inference-Header-Content-Length": str(head_bytes),
                 "Content-Type": "application/octet-stream"},
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if answer.status_code != httpx.codes.OK:
        raise LabFailed(f"{model}: {answer.status_code} {answer.text[:300]}")
    return decode(answer.content, int(answer.headers["inference-header-content-length"])), seconds


def differences(
    served: dict[str, NDArray[Any]], native: dict[str, NDArray[Any]]
) -> tuple[float, int]:
    """Return the largest relative difference, and the labels that differ outside ties."""
    largest = 0.0
    for name, expected in native.items():
        if name not in served:
            return math.inf, 0
        if expected.dtype.kind == "f":
            largest = max(largest, max(_relative(served[name], expected), default=0.0))
    if "label" not in native:
        return largest, 0
    if served["label"].shape != native["label"].shape:
        return math.inf, 0
    ties = _ties_of_several(native) if native["label"].ndim == 2 else _ties(native)
    differs = served["label"].astype(str) != native["label"].astype(str)
    return largest, int((differs & ~ties).sum())


def _ties(native: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return the rows whose two best classes are within twice the tolerance."""
    is_tie = np.zeros(len(native["label"]), dtype=bool)
    for name, expected in native.items():
        if name == "probabilities":
            top = np.sort(expected, axis=1)
            is_tie = top[:, -1] - top[:, -2] <= 2 * _TOLERANCE
        elif name == "scores":
            top = np.sort(expected.reshape(len(expected), -1), axis=1)
            # The one score of two classes decides by its sign, several by the largest.
            gap = np.abs(top[:, -1]) if top.shape[1] == 1 else top[:, -1] - top[:, -2]
            is_tie = gap <= 2 * _TOLERANCE
    return is_tie


def _ties_of_several(native: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return the labels, of several a row, that are near a half, or near another of their own."""
    near = np.zeros(native["label"].shape, dtype=bool)
    for name, expected in native.items():
        if name in ("probabilities", "scores"):
            middle = 0.5 if name == "probabilities" else 0.0
            near |= np.abs(expected - middle) <= _TOLERANCE
        elif name.startswith("probabilities_"):
            top = np.sort(expected, axis=1)
            target = int(name.removeprefix("probabilities_"))
            near[:, target] = top[:, -1] - top[:, -2] <= 2 * _TOLERANCE
    return near


def _relative(got: NDArray[Any], expected: NDArray[Any]) -> Iterator[float]:
    left, right = got.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    if left.shape != right.shape:
        yield float("inf")
        return
    with np.errstate(invalid="ignore"):
        scaled = np.abs(left - right) / np.maximum(1.0, np.abs(right))
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    yield float(np.where(same, 0.0, np.nan_to_num(scaled, nan=np.inf)).max(initial=0.0))


def _show(findings: Findings, one: Compared) -> Compared:
    native, served = ("/".join(number(us) for us in pair)
                      for pair in (one.native_us, one.served_us))  # fmt: skip
    findings.say(f"{one.name:<44} {one.runtime:<8} {one.rows:>5} {one.difference:>10.2g} "
                 f"{one.labels:>6} {native:>16} {served:>15}")  # fmt: skip
    return one


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench parity", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one case or two of each family")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rows", type=int, default=2400, metavar="N", help="rows of each case (default 2400)")
    add("--family", action="append", metavar="NAME", help="only this family; may be repeated")
    return parser

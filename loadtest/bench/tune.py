"""Tune: what `ramrack tune` finds for two models, held to the defaults by runs of its own.

`ramrack tune` searches for a forest (fraud, many rows a request) and for an encoder. Then servers
with the defaults and with what was found are measured in turn, several rounds: the highest rate of
a ladder at which p99 is within the target. Server and generator share all cores, as in the search.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtest.lab.bed import Bed, bed, make_models
from loadtest.lab.bodies import as_json, table_rows, tokens
from loadtest.lab.claims import Findings, Target, number, ratios, spread
from loadtest.lab.generators import Load, open_loop
from loadtest.lab.machine import machine_lines
from loadtest.lab.processes import LabFailed
from loadtest.lab.ramrack import RAMRACK, Ramrack, ramrack

# Noise of a rate between two rounds; what was found must not be worse than by it.
_NO_WORSE: Final = 0.97
_STEP: Final = 1.1
# The ladder begins at this share of the lower of both rates that the search saw.
_BOTTOM: Final = 0.6
_MOST_STEPS: Final = 14
_GRACE_S: Final = 180


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, what is sent to it, and the latency that it is tuned for."""

    name: str
    body: Path
    p99_ms: float
    what: str


@dataclass(frozen=True, slots=True)
class Rungs:
    """The ladder of rates of one subject, and how long each is sent."""

    rates: tuple[float, ...]
    seconds: float


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 if a target was missed."""
    options = _parser().parse_args(argv)
    findings = Findings("tune")
    for line in machine_lines():
        findings.say(line)
    rounds, minutes, seconds = options.rounds, options.minutes, options.seconds
    if options.quick:
        rounds, minutes, seconds = 1, min(minutes, 2.0), min(seconds, 0.5)
    with bed(findings, rounds=rounds, seconds=seconds, table_mib=1) as here:
        here.server_cores = here.client_cores = os.sched_getaffinity(0)
        names = options.only or ["fraud", "encoder"]
        make_models(here, names)
        for subject in _subjects(here, names):
            p99_ms = options.p99_ms or subject.p99_ms
            _tune(here, replace(subject, p99_ms=p99_ms), minutes)
    return findings.finish(options.json)


def _subjects(here: Bed, names: list[str]) -> list[Subject]:
    found = []
    if "fraud" in names:
        sample = Path(here.index["fraud"]["sample"])
        body = _kept(here, "fraud", as_json(table_rows(sample, 64)))
        found.append(Subject("fraud", body, 20.0, "64 rows a request"))
    if "encoder" in names:
        body = _kept(here, "encoder", as_json(tokens(32)))
        found.append(Subject("encoder", body, 100.0, "a text of 32 tokens"))
    return found


def _kept(here: Bed, name: str, data: bytes) -> Path:
    path = here.work / f"{name}.json"
    path.write_bytes(data)
    return path


def _tune(here: Bed, subject: Subject, minutes: float) -> None:
    """Search, then hold what was found to the defaults."""
    findings = here.findings
    findings.say(f"\n== {subject.name}: {subject.what}, p99 within {subject.p99_ms:g} ms")
    findings.is_late = False
    work = here.work / subject.name
    work.mkdir()
    with ramrack(here.server_cores, work) as server:
        server.push(subject.name, here.index[subject.name]["push"][0], "--load")
    output = work / "found.toml"
    said = _search(subject, work, output, minutes)
    findings.say(f"  found: {said['words']}")
    findings.measured[f"tune: {subject.name}"] = said
    rates = said["rates"]
    known = [float(rate) for side in rates.values() for rate in side if rate] or [
        float(rate) for trial in said["trials"] for rate in trial["rates"] if rate
    ]
    if not known:
        findings.skip(f"{subject.name}: found settings by defaults", Target(">=", _NO_WORSE),
                      "no rate was within the target")  # fmt: skip
        return
    rungs = Rungs(
        tuple(_BOTTOM * min(known) * _STEP**step for step in range(_MOST_STEPS)), here.seconds
    )
    seen: dict[str, list[float]] = {"defaults": [], "found": []}
    for count in range(here.rounds):
        for side in sorted(seen, reverse=bool(count % 2)):
            is_found = side == "found"
            seen[side].append(_measure(here, subject, work, rungs, said if is_found else None))
    for side, values in seen.items():
        findings.say(f"  {side:<9} {spread(values)} a second within the target")
        findings.measured[f"{subject.name}: {side}"] = values
    name = f"{subject.name}: rate of the found settings by that of the defaults"
    target = Target(">=", _NO_WORSE)
    if values := ratios(seen["found"], seen["defaults"]):
        findings.claim(name, target, values, str(said["sureness"]))
    else:
        findings.skip(name, target, "the defaults kept to the target at no rate, in no round")


def _search(subject: Subject, work: Path, output: Path, minutes: float) -> dict[str, Any]:
    command = [str(RAMRACK), "tune", subject.name, "--p99-ms", str(subject.p99_ms),
               "--minutes", str(minutes), "--store", str(work / "store"),
               "--input", str(subject.body), "--output", str(output), "--json"]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=minutes * 60 + _GRACE_S, check=False
    )
    if done.returncode != 0:
        raise LabFailed(f"ramrack tune: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(
    here: Bed, subject: Subject, work: Path, rungs: Rungs, said: dict[str, Any] | None
) -> float:
    """Return the highest rate within the target; ``said``: what was found, None for defaults."""
    config = work / "found.toml" if said else work / "defaults.toml"
    if not said:
        config.write_text("", encoding="utf-8")
    is_batching = said is None or bool(said["chosen"]["batching"])
    with ramrack(here.server_cores, work, "--config", str(config)) as server:
        server.must("PUT", f"/models/{subject.name}/settings",
                    {"batching": None if is_batching else False})  # fmt: skip
        return _climbed(here, server, subject, rungs)


def _climbed(here: Bed, server: Ramrack, subject: Subject, rungs: Rungs) -> float:
    load = Load(f"{server.url}/v2/models/{subject.name}/infer", subject.body)
    open_loop(load, rungs.rates[0], rungs.seconds, here.client_cores)
    reached = 0.0
    misses = 0
    for rate in rungs.rates:
        report = open_loop(load, rate, rungs.seconds, here.client_cores, "--timeout-s", "2")
        if report["failed"] == 0 and report["p99_ms"] <= subject.p99_ms:
            reached, misses = rate, 0
            continue
        # One bad moment of the machine is not the end of the ladder.
        misses += 1
        if misses > 1:
            break
    if reached == rungs.rates[-1]:
        here.findings.doubt(f"{subject.name}: the ladder ends at {number(reached)} a second")
    return reached


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench tune", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one short round after a short search: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    add("--seconds", type=float, default=3.0, metavar="S", help="each rate is sent (default 3)")
    add("--minutes", type=float, default=4.5, metavar="N", help="of each search (default 4.5)")
    add("--p99-ms", type=float, metavar="MS", help="latency to tune for, instead of each model's")
    add("--only", action="append", choices=["fraud", "encoder"], help="only this model")
    return parser

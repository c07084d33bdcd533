"""Faults: workers and parents killed, disks filled, routes swapped, all under load; what must hold.

Each fault is done to a server of its own, with two workers and the defaults but for shorter limits,
while requests come at a steady rate. Every answer is held to its own request and its version. The
letters of the rules, and what each fault does, are in docs/BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Final

from loadtest.faults import (
    admin_storms,
    bad_requests,
    clock,
    crowds,
    cuts,
    damage,
    disk_steps,
    full_disk,
    overload,
    parent_deaths,
    pressure,
    scarcity,
    soak,
    stops,
    swaps,
    worker_deaths,
)
from loadtest.faults.lab import Fault, Lab
from loadtest.faults.outcome import HEADER, Outcome, table
from loadtest.faults.packages import Packages
from loadtest.lab.bed import ROOT
from loadtest.lab.machine import describe_machine, machine_lines
from loadtest.lab.processes import LabFailed

FAULTS: Final[dict[str, Fault]] = {
    fault.name: fault
    for module in (
        worker_deaths, parent_deaths, disk_steps, full_disk, damage, cuts, clock, pressure,
        scarcity, crowds, swaps, admin_storms, overload, bad_requests, stops, soak,
    )
    for fault in module.FAULTS
}  # fmt: skip


def main(argv: list[str]) -> int:
    """Do what the arguments say, print the table, and return 1 if a rule was broken."""
    options = _parser().parse_args(argv)
    fraction = min(options.fraction, 0.1) if options.quick else options.fraction
    for line in machine_lines():
        print(line)
    parent = ROOT / ".ramrack" / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        print("making the models", flush=True)
        work = Path(folder)
        lab = Lab(work, Packages.make(work / "packages"), options.rate)
        print(HEADER, flush=True)
        for name in options.only or FAULTS:
            outcomes.append(_done(lab, FAULTS[name], fraction))
            print(outcomes[-1].line(), flush=True)
            for text in (*outcomes[-1].notes, *outcomes[-1].reasons):
                print(f"        {text}", flush=True)
    print(f"\n{table(outcomes)}")
    if options.json is not None:
        document = {
            "bench": "faults", "machine": describe_machine(),
            "faults": [outcome.to_json() for outcome in outcomes],
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0 if all(outcome.is_held for outcome in outcomes) else 1


def _done(lab: Lab, fault: Fault, fraction: float) -> Outcome:
    count = max(1, round(fault.full_count * fraction))
    try:
        return fault.run(lab, count)
    except LabFailed as error:
        # A server that is gone or never ready breaks the rule of recovery, whatever else it broke.
        outcome = Outcome(fault.name, fault.title, count)
        outcome.judge("H", is_held=False, why=str(error))
        return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench faults", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the counts at most: whether it runs")
    add("--json", type=Path, metavar="FILE", help="write everything that was found")
    add("--only", action="append", choices=list(FAULTS), help="only this one; may be repeated")
    add("--fraction", type=_share, default=1.0, metavar="X",
        help="of the counts, above 0 and at most 1 (default 1)")  # fmt: skip
    add("--rate", type=float, default=200.0, metavar="N", help="requests a second (default 200)")
    return parser


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number above 0 and at most 1")
    return value

"""Weights: many versions that share them, what is held, pushed, loaded and left behind.

The server is `ramrack serve --workers 2` over an empty store, started anew for each scenario. The
models are made, pushed and removed one after the other, and each scenario says first what it needs.
The full size takes about 25 minutes on two quiet cores; `--scale 0.05` shows that everything runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from loadtest.bench import EXIT_BROKEN, _weights_many, _weights_one
from loadtest.bench._weights_rig import Sizes
from loadtest.bench._weights_room import NEEDS, lacking
from loadtest.lab.bed import Bed, bed
from loadtest.lab.claims import Findings, Target
from loadtest.lab.machine import machine_lines
from loadtest.lab.processes import LabFailed

SCENARIOS: Final[dict[str, Callable[[Bed, Sizes], None]]] = {
    "shared-table": _weights_many.shared_table,
    "shared-layers": _weights_many.shared_layers,
    "distinct": _weights_many.distinct,
    "push": _weights_one.pushes,
    "load": _weights_one.loads,
    "encoder": _weights_one.encoder,
}
_QUICK_SCALE: Final = 0.05


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 if a target was missed."""
    options = _parser().parse_args(argv)
    findings = Findings("weights")
    for line in machine_lines():
        findings.say(line)
    rounds, scale = options.rounds, options.scale
    if options.quick:
        rounds, scale = 2, min(scale, _QUICK_SCALE)
    busy, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if busy > cores / 2:
        findings.doubt(f"other work runs here: a load of {busy:.1f} on {cores} cores")
    if scale < 1:
        findings.doubt(f"scale {scale:g}: the claims speak of 1")
    with bed(findings, rounds=rounds, seconds=options.seconds, table_mib=0) as here:
        are_done = [
            _run(here, name, Sizes(scale), is_forced=options.force)
            for name in options.only or SCENARIOS
        ]
    code = findings.finish(options.json)
    return code if code or all(are_done) else EXIT_BROKEN


def _run(here: Bed, name: str, sizes: Sizes, *, is_forced: bool) -> bool:
    """Measure one scenario; where that is not possible say why, and let the others go on."""
    findings, needs, began_s = here.findings, NEEDS[name].at(sizes), time.monotonic()
    findings.say(f"\n== {name}: needs {needs}")
    why = "" if is_forced else lacking(needs, here.work)
    try:
        if not why:
            SCENARIOS[name](here, sizes)
    except (LabFailed, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
        why = f"it broke off: {error}"
    if why:
        findings.is_late = False
        findings.skip(f"{name}, all that is not above", Target(">=", 1, ""), why)
    findings.say(f"  {name} took {(time.monotonic() - began_s) / 60:.1f} min")
    return not why


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench weights", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="two rounds at a twentieth of the size: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    add("--seconds", type=float, default=3.0, metavar="S", help="length of each run under load")
    add("--scale", type=float, default=1.0, metavar="X", help="size of the models (default 1)")
    add("--force", action="store_true", help="also where memory or disk seem to be too little")
    add("--only", action="append", choices=list(SCENARIOS), help="only this; may be repeated")
    return parser

"""Weights: many versions that share them, what is held, pushed, loaded and left behind.

The server is `ramrack serve --workers 2` over an empty store, started anew for each scenario. The
models are made, pushed and removed one after the other. The full size wants 16 GB of RAM free, 40
GB of disk and an hour; `--scale 0.05` shows in minutes that everything runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadtest.bench import _weights_many, _weights_one
from loadtest.bench._weights_rig import Sizes
from loadtest.lab.bed import Bed, bed
from loadtest.lab.claims import Findings
from loadtest.lab.machine import machine_lines

_SCENARIOS: Final[dict[str, Callable[[Bed, Sizes], None]]] = {
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
    if scale < 1:
        findings.doubt(f"scale {scale:g}: the claims speak of 1")
    with bed(findings, rounds=rounds, seconds=options.seconds, table_mib=0) as here:
        for name in options.only or _SCENARIOS:
            findings.say(f"\n== {name}")
            _SCENARIOS[name](here, Sizes(scale))
    return findings.finish(options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench weights", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="two rounds at a twentieth of the size: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    add("--seconds", type=float, default=3.0, metavar="S", help="length of each run under load")
    add("--scale", type=float, default=1.0, metavar="X", help="size of the models (default 1)")
    add("--only", action="append", choices=list(_SCENARIOS), help="only this; may be repeated")
    return parser

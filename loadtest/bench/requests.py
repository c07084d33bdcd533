"""Requests: our server against the other ways to serve a model, on one core each in turn.

Each server runs pinned to one core and the load generator to another. Ours is `ramrack serve`
with its defaults and one worker, all checks on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from loadtest.bench import _encoder, _installed, _pressure, _throughput
from loadtest.bench._throughput import ASGI, FASTAPI, FIXED
from loadtest.lab.bed import Bed, bed, make_models, start_contender, start_ours
from loadtest.lab.bodies import as_json
from loadtest.lab.claims import Findings
from loadtest.lab.machine import machine_lines

TABLE_MIB: Final = 2048
_QUICK_TABLE_MIB: Final = 64
_SCENARIOS: Final[dict[str, Callable[[Bed], None]]] = {
    "one-row": _throughput.one_row,
    "many-rows": _throughput.many_rows,
    "recommender": _throughput.recommender,
    "mix": _throughput.mix,
    "encoder": _encoder.encoder,
    "others": _encoder.others,
    "half-load": _pressure.half_load,
    "overload": _pressure.overload,
    "neighbours": _pressure.neighbours,
}
_HOGS: Final = 1.5


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 if a target was missed."""
    options = _parser().parse_args(argv)
    findings = Findings("requests")
    for line in machine_lines():
        findings.say(line)
    if os.getloadavg()[0] > _HOGS:
        findings.doubt(f"the machine is busy with other work: load {os.getloadavg()[0]:.1f}")
    rounds, seconds = (2, 1.0) if options.quick else (options.rounds, options.seconds)
    table_mib = max(1, round(options.scale * (_QUICK_TABLE_MIB if options.quick else TABLE_MIB)))
    with bed(findings, rounds=rounds, seconds=seconds, table_mib=table_mib) as here:
        make_models(here, ("fraud", "recommender", "encoder"), "--recommender-mib", str(table_mib))
        with ExitStack() as stack:
            _start(here, stack)
            for name in options.only or _SCENARIOS:
                findings.say(f"\n== {name}")
                findings.is_late = False
                _SCENARIOS[name](here)
            if options.peers:
                findings.say("\n== peers")
                _installed.compare(here)
    return findings.finish(options.json)


def _start(here: Bed, stack: ExitStack) -> None:
    """Start our server and the three contenders that need nothing installed."""
    index = here.index
    start_ours(here, stack, {
        "fraud": index["fraud"]["push"][1],
        "batch": index["fraud"]["push"][0],
        "recommender": index["recommender"]["push"][0],
        "encoder": index["encoder"]["push"][0],
    })  # fmt: skip
    models = {"fraud": index["fraud"]["onnx"][1], "recommender": index["recommender"]["onnx"][0]}
    flags = [part for name, path in models.items() for part in ("--model", f"{name}={path}")]
    start_contender(here, stack, FASTAPI, "fastapi_pydantic.py", *flags)
    start_contender(here, stack, ASGI, "plain_asgi.py", *flags)
    # As long as what the others answer, so that writing it costs the same.
    answer = here.body(
        "answer", here.answer("ramrack", "fraud", as_json(_throughput.fraud_rows(here, 1)))
    )
    start_contender(here, stack, FIXED, "fixed_answer.py", "--answer", str(answer))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench requests", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="two short rounds and a small table: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    add("--seconds", type=float, default=3.0, metavar="S", help="length of each (default 3)")
    add("--scale", type=float, default=1.0, metavar="X",
        help="size of the recommender's table, 1 being 2 GiB (with --quick 64 MiB)")  # fmt: skip
    add("--only", action="append", choices=list(_SCENARIOS), help="only this; may be repeated")
    add("--peers", action="store_true",
        help="compare with MLServer, LitServe, BentoML and Ray Serve too; installs them into "
             "environments under .ramrack/peers")  # fmt: skip
    return parser

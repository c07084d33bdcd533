"""Counters: workers are killed at random under load; every counter against what clients counted.

A counter may miss, or have on top, only what was in flight in a worker that died. None may fall
from one scrape to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Final

from loadtest.faults.packages import Packages
from loadtest.faults.server import FaultServer, fault_server
from loadtest.faults.tally import MODEL, Series, Tally, count_through_deaths, shown
from loadtest.lab.bed import ROOT
from loadtest.lab.machine import describe_machine, machine_lines

_QUICK_S: Final = 6.0


def main(argv: list[str]) -> int:
    """Count as long as the arguments say; return 1 if a counter was wrong."""
    options = _parser().parse_args(argv)
    seconds = min(options.seconds, _QUICK_S) if options.quick else options.seconds
    for line in machine_lines():
        print(line)
    parent = ROOT / ".ramrack" / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        packages = Packages.make(Path(folder) / "packages")
        with fault_server(Path(folder)) as server:
            server.serve(packages.read(f"{MODEL}-1"))
            tally = asyncio.run(count_through_deaths(server, seconds, seed=options.seed))
            counted = counts(server, tally)
    problems = tally.problems(counted)
    _print(tally, counted, problems)
    if options.json is not None:
        document = {
            "bench": "counters", "machine": describe_machine(), "deaths": tally.deaths,
            "broken": tally.broken, "scrapes": tally.scrapes, "problems": problems,
            "counters": {shown(series): total for series, total in counted.items()},
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 1 if problems else 0


def counts(server: FaultServer, tally: Tally) -> dict[Series, float]:
    """Return what the server says of each counter that the clients added to."""
    known = {*tally.answered, *tally.lost}
    return {series: server.metric(series[0], **dict(series[1])) for series in sorted(known)}


def _print(tally: Tally, counted: dict[Series, float], problems: list[str]) -> None:
    print(
        f"{sum(tally.statuses.values())} answers, {tally.deaths} workers killed, "
        f"{tally.broken} connections broken, {tally.scrapes} scrapes\n"
    )
    print("| counter | clients | server | in flight at a death |\n| --- | --- | --- | --- |")
    for series, total in counted.items():
        print(
            f"| `{shown(series)}` | {tally.answered[series]} | {total:g} | {tally.lost[series]} |"
        )
    print()
    for problem in problems:
        print(f"WRONG: {problem}")
    print("counters wrong" if problems else "every counter is what its clients counted")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench counters", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="six seconds at most: whether it runs")
    add("--json", type=Path, metavar="FILE", help="write everything that was found")
    add("--seconds", type=float, default=60.0, metavar="N", help="how long (default 60)")
    add("--seed", type=int, default=1, metavar="N", help="of requests and deaths (default 1)")
    return parser

"""Fuzzing: strangers' bytes into every parser for minutes, guided by coverage where atheris is."""

from __future__ import annotations

import argparse
import subprocess
import sys

from loadtest.lab.bed import ROOT


def main(argv: list[str]) -> int:
    """Run the fuzzers of the tests, which know the parsers; a find is a missed target."""
    parser = argparse.ArgumentParser(prog="scripts/bench fuzz", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=1.0, metavar="N",
        help="for each target, of processor time; openapi-*: by the clock (default 1)")  # fmt: skip
    add("--target", action="append", metavar="NAME", help="only this one; may be repeated")
    add("--quick", action="store_true", help="three seconds each: whether it runs")
    options = parser.parse_args(argv)
    minutes = min(options.minutes, 0.05) if options.quick else options.minutes
    targets = [part for name in options.target or () for part in ("--target", name)]
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", str(minutes), *targets]
    return subprocess.run(command, cwd=ROOT, check=False).returncode

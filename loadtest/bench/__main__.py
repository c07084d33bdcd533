"""``scripts/bench NAME``: runs one bench and exits with 1 if a stated target was missed."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from typing import Final

import httpx

from loadtest.bench import EXIT_BROKEN, found_benches
from loadtest.lab.processes import LabFailed

_USAGE: Final = """\
usage: scripts/bench NAME [--quick] [--json FILE] [...]

Each bench proves claims: it prints the machine, the versions, what it measured (median, and least
to most over the rounds), and for each claim the target and the verdict. docs/BENCHMARKS.md says how
to read them. Exit code: 0 no target missed; 1 one was, and it says which; 2 wrong usage; 3 the
bench could not run.
"""


def main(arguments: list[str]) -> int:
    """Run the bench that the first argument names."""
    benches = found_benches()
    if not arguments or arguments[0] in ("-h", "--help"):
        _print_usage(benches)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in benches:
        sys.stderr.write(f"{name!r} is no bench: use {', '.join(benches)}\n")
        return 2
    # A stop from outside takes the same way out as Ctrl-C, through every clean-up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    module = importlib.import_module(f"loadtest.bench.{name}")
    try:
        return int(module.main(rest))
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    except (LabFailed, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return EXIT_BROKEN


def _print_usage(benches: dict[str, str]) -> None:
    width = max(map(len, benches))
    print(_USAGE)
    for name, line in benches.items():
        print(f"  {name.ljust(width)}  {line}")
    print("\nscripts/bench NAME --help lists the options of one.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m loadtest NAME``: everything that drives load, under one roof."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_USAGE: Final = """\
usage: python -m loadtest NAME [...]

Drives load against Ramrack servers and says what came back. NAME is one of:

  locust        users against a running server: closed loop, web page or headless, promises (SLO)
  open-loop     requests at a fixed rate, answered or not: what a tail latency really is
  closed-loop   some connections kept busy: how much a server can do
  swap          a small model's latency while large ones come and go, and routes change
  cycles        one version loaded and unloaded again and again: is memory given back
  bench         the benches of scripts/bench, each of which proves claims

Examples, against a server at 127.0.0.1:8080:

  python -m loadtest locust --host http://127.0.0.1:8080 --headless -u 20 -t 30s \\
      --models fraud=3,travel --shape steps --slo-p99-ms 50 --slo-error-rate 0
  python -m loadtest open-loop http://127.0.0.1:8080/v1/models/fraud:predict request.json \\
      --rate 500 --seconds 10 --html report.html
  python -m loadtest cycles http://127.0.0.1:8081 fraud 2 --cycles 50
  python -m loadtest swap --quick
  python -m loadtest bench requests --quick

`ramrack bench NAME` makes the requests itself and runs the open loop; start there if you only want
to know how fast your model is. `python -m loadtest NAME --help` lists the options of one, and
docs/LOADTEST.md says which to take when. Needs the extra: pip install 'ramrack[loadtest]'
"""


def main(arguments: list[str]) -> int:
    """Run what the first argument names and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in NAMES:
        sys.stderr.write(f"{name!r} is not one of {', '.join(NAMES)}\n")
        return 2
    try:
        return NAMES[name](rest)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("locust", "hdrh", "gevent"):
            raise
        sys.stderr.write(f"{error.name} is not installed: pip install 'ramrack[loadtest]'\n")
        return 1


def _locust(arguments: list[str]) -> int:
    importlib.import_module("locust")
    file = Path(__file__).with_name("locustfile.py")
    sys.argv = ["locust", "-f", str(file), *arguments]
    # Locust reads its command line itself, and ends the process with its exit code.
    runpy.run_module("locust", run_name="__main__", alter_sys=True)
    return 0


def _module(name: str) -> Callable[[list[str]], int]:
    return lambda arguments: int(importlib.import_module(name).main(arguments))


NAMES: Final[dict[str, Callable[[list[str]], int]]] = {
    "locust": _locust,
    "open-loop": _module("loadtest.open_loop"),
    "closed-loop": _module("loadtest.closed_loop"),
    "swap": _module("loadtest.swap_under_load"),
    "cycles": _module("loadtest.cycles"),
    "bench": _module("loadtest.bench.__main__"),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One open-loop run in a process of its own, so that nothing here makes its requests late."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from registry.errors import InvalidInput
from serving.cli.interrupt import INTERRUPT

_GRACE_S: Final = 60.0
# What it ends with after a report: all answered, a request failed, not valid.
_REPORTED: Final = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, where, and how often."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    rate: float
    seconds: float
    connections: int = 16
    arrivals: str = "poisson"
    seed: int = 0
    timeout_s: float = 10.0
    files: tuple[str, ...] = ()


def check_installed() -> None:
    """Raise InvalidInput unless what measures is installed."""
    if importlib.util.find_spec("hdrh") is None:
        raise InvalidInput(
            "measuring needs the package hdrhistogram: pip install 'ramrack[loadtest]'"
        )


def run_load(load: Load, token: str = "") -> tuple[dict[str, Any], bool]:
    """Return the report of the run, and whether Ctrl-C ended it.

    After Ctrl-C the report is about what was sent until then. Raises InvalidInput where there is
    no report.
    """
    with tempfile.TemporaryDirectory(prefix="ramrack-bench-") as folder:
        body = Path(folder, "request")
        body.write_bytes(load.body)
        process = subprocess.Popen(
            _command(load, body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Ctrl-C reaches it as well: it then ends its schedule and reports.
            env={**os.environ, "RAMRACK_TOKEN": token},
        )  # fmt: skip
        is_stopped = False
        try:
            try:
                out, said = process.communicate(timeout=load.seconds + _GRACE_S)
            except KeyboardInterrupt:
                is_stopped = True
                out, said = process.communicate(timeout=_GRACE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if not out.strip() or process.returncode not in _REPORTED:
        if is_stopped or INTERRUPT.is_pressed:
            raise KeyboardInterrupt
        raise InvalidInput(f"no measurement: {said.strip()[-300:] or 'the generator ended'}")
    report: dict[str, Any] = json.loads(out)
    return report, is_stopped


def _command(load: Load, body: Path) -> Sequence[str]:
    headers = [part for name, value in load.headers.items()
               for part in ("--header", f"{name}: {value}")]  # fmt: skip
    return [
        sys.executable, "-m", "loadtest.open_loop", load.url, str(body),
        "--rate", repr(load.rate), "--seconds", repr(load.seconds),
        "--connections", str(load.connections), "--arrivals", load.arrivals,
        "--seed", str(load.seed), "--timeout-s", repr(load.timeout_s), *headers, *load.files,
    ]  # fmt: skip


def problem_of(report: Mapping[str, Any]) -> str:
    """Return why a report is no good news: not valid, or failures; empty if it is."""
    if not report["valid"]:
        return (
            f"not valid: only {report['on_time_share']:.1%} of the requests were started within "
            "1 ms of when they were meant to; ask for less, or run this on another machine"
        )
    if report["failed"]:
        first = next(iter(report["errors"]), "")
        return f"{report['failed']} of {report['sent']} requests failed, such as: {first}"
    return "" if report["sent"] else "nothing was sent"

"""F3 and F4: the power goes before each step of the disk, and each system call fails once.

They need a disk that can be cut off at any step, so the checks are tests; here all steps of them
are done, none left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

from loadtest.faults.lab import Fault, Lab
from loadtest.faults.outcome import Outcome
from loadtest.lab.bed import ROOT

FULL_COUNTS: Final = "RAMRACK_TEST_FULL"
_STORE: Final = "tests/unit/registry/test_store_crash.py"
_SERVER: Final = "tests/process/test_publish_crash.py"
_PASSED: Final = re.compile(r"(\d+) passed")
_TIMEOUT_S: Final = 1800.0


def crash_points(_: Lab, outcome: Outcome) -> None:
    """Cut the power, or kill the process, before every step of a push, a delete and a gc."""
    _tests(outcome, _STORE, _SERVER, "-k", "f02 or f03 or f2_ or f23 or kill")


def failing_calls(_: Lab, outcome: Outcome) -> None:
    """Let the n-th system call fail, for each n until none is left."""
    _tests(outcome, _STORE, "-k", "f04")


def _tests(outcome: Outcome, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0",
             *arguments],
            cwd=ROOT, env=os.environ | {FULL_COUNTS: "1"}, timeout=_TIMEOUT_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        outcome.skipped = str(error)
        return
    if "No module named pytest" in done.stderr:
        outcome.skipped = "pytest is not installed: scripts/test makes the environment for it"
        return
    passed = _PASSED.search(done.stdout)
    outcome.figures["tests"] = float(passed.group(1)) if passed else 0.0
    outcome.judge("A", done.returncode == 0 and passed is not None, done.stdout.strip()[-600:])


FAULTS: Final = (
    Fault("F3", "power cut or kill at every step", 1, crash_points),
    Fault("F4", "every system call fails once", 1, failing_calls),
)

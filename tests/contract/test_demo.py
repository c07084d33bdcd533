"""The demo from end to end, with a small recommender: the first thing that a new user runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"fraud", "digits", "wine", "diabetes", "churn", "recommender"}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.extra
@pytest.mark.timeout(900)
def test_the_demo_shows_every_model_and_a_swap_without_a_failure():
    """scripts/demo --once ends with 0, a line for each model, and no failed request."""
    done = subprocess.run(
        [ROOT / "scripts/demo", "--once", "--recommender-mib", "32", "--seconds", "0.3"],
        capture_output=True, text=True, timeout=880, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    table = done.stdout.split("\nmodel ", 1)[1]
    assert {line.split()[0] for line in table.splitlines()[1:7]} == MODELS
    swap = re.search(r"swap of fraud: (\d+) requests sent, 0 failed, .* order: 1 -> 2,", table)
    assert swap is not None
    assert int(swap[1]) > 0
    assert "PSS" in table
    assert re.search(r"^== .*: done in [\d.]+ s$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("option", ["--recommender-mib", "--seconds"])
def test_a_size_that_makes_no_sense_is_wrong_usage(option: str):
    """An option that cannot be meant ends with 2 before anything is trained."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/demo.py", option, "0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert option in done.stderr

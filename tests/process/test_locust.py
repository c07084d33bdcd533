"""Locust's users against the real server: they fit any model, and the gate tells slow from fast."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import graphs
from tests.process.server import ROOT, RunningServer, running_server

pytestmark = [pytest.mark.process, pytest.mark.slow]

# A row of the slow model takes a millisecond or more, and all users wait for one another.
USERS = "64"
GATE_MS = "1000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # One thread, so that the slow model is slow on a machine of many cores as well; and callers
    # wait however long that takes.
    folder = tmp_path_factory.mktemp("locust")
    settings = {"threads_per_worker": 1, "queue_ms": 0}
    with running_server(folder, settings=settings) as started:
        for name, graph in {
            "matrix": graphs.id32(), "texts": graphs.idstr(), "whole": graphs.scal(),
            "slow": graphs.slow(k=5, width=256),
        }.items():  # fmt: skip
            started.push(name, graph)
        yield started


def locust(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "locust", "-f", ROOT / "loadtest/locustfile.py", "--host", url,
         "--headless", "--only-summary", *arguments],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_every_form_of_every_model_is_answered_and_the_files_are_written(
    server: RunningServer, tmp_path: Path
):
    """Bodies come from the metadata alone; CSV, HTML and JSON hold the result."""
    done = locust(
        server.url, "-u", "4", "-r", "10", "-t", "4s", "--rows", "1",
        "--models", "matrix=3,texts,whole", "--slo-error-rate", "0",
        "--csv", str(tmp_path / "out"), "--html", str(tmp_path / "out.html"),
        "--json-file", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SLO met" in done.stderr
    with (tmp_path / "out_stats.csv").open() as file:
        rows = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    models = ("matrix", "texts", "whole")
    assert set(rows) == {"Aggregated"} | {
        f"{form} {model}" for form in ("v1", "v2", "binary") for model in models
    }
    assert rows["v2 matrix"] > rows["v2 texts"]
    assert len(json.loads((tmp_path / "out.json").read_text())) == 9
    assert "<html" in (tmp_path / "out.html").read_text()


def test_the_gate_is_green_for_a_fast_model_and_red_for_a_slow_one(server: RunningServer):
    """The same promise, kept by one model and broken by another, with the reason printed."""
    options = ("-u", USERS, "-r", "100", "-t", "4s", "--rows", "16", "--stop-timeout", "3",
               "--slo-p99-ms", GATE_MS, "V2JsonUser")  # fmt: skip
    fast = locust(server.url, "--models", "matrix", *options)
    assert fast.returncode == 0, fast.stdout + fast.stderr
    slow = locust(server.url, "--models", "slow", *options)
    assert slow.returncode == 1, slow.stdout + slow.stderr
    assert "SLO missed: p99 is" in slow.stderr
    assert f"allowed are {GATE_MS} ms" in slow.stderr


def test_a_shape_ends_by_itself_and_an_unknown_model_is_said(server: RunningServer):
    """A spike of eight users; a model that is not there ends the run with its name."""
    spike = locust(
        server.url, "-u", "8", "-t", "4s", "--shape", "spike", "--models", "matrix", "MixedUser",
        "--slo-error-rate", "0", "--per-user", "20", "--json",
    )  # fmt: skip
    assert spike.returncode == 0, spike.stdout + spike.stderr
    assert "updating to 8 users" in spike.stderr
    sent = sum(entry["num_requests"] for entry in json.loads(spike.stdout))
    # One user for 3.2 s and eight for 0.8 s, 20 a second each and up to half as much again.
    assert 1 < sent < 500
    gone = locust(server.url, "-u", "1", "-t", "2s", "--models", "nope")
    assert gone.returncode == 1
    assert "cannot start" in gone.stderr
    assert "nope" in gone.stderr

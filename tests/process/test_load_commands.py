"""``ramrack bench`` and ``top`` against the real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import graphs
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("load")) as started:
        started.push("matrix", graphs.id32())
        started.push("texts", graphs.idstr())
        yield started


def environ(server: RunningServer) -> dict[str, str]:
    return os.environ | {"RAMRACK_URL": server.url, "RAMRACK_ADMIN_URL": server.admin_url}


def ramrack(server: RunningServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments],
        capture_output=True, text=True, timeout=100, check=False, env=environ(server),
    )  # fmt: skip


def test_bench_measures_what_it_made_up_and_writes_its_files(server: RunningServer, tmp_path: Path):
    """All that was sent was answered; files are there; a late generator is said and is no 0."""
    done = ramrack(
        server, "bench", "texts", "--rate", "50", "--seconds", "1", "--form", "binary", "--json",
        "--html", str(tmp_path / "r.html"), "--hlog", str(tmp_path / "r.hlog"),
        "--hgrm", str(tmp_path / "r.hgrm"),
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["failed"] == 0
    assert report["succeeded"] == report["sent"] > 20
    assert sum(bucket["count"] for bucket in report["histogram"]) == report["sent"]
    assert done.returncode == (0 if report["valid"] else 1)
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "r.hlog", "r.hgrm"}


def test_bench_sends_a_file_to_a_version_and_prints_a_histogram(
    server: RunningServer, tmp_path: Path
):
    """Rows of a file go to the version that was named; the table has every quantile."""
    rows = tmp_path / "rows.json"
    rows.write_text("[[1, 2, 3, 4]]")
    done = ramrack(
        server, "bench", "matrix", "--rate", "50", "--seconds", "0.5", "--rows", "3",
        "--input", str(rows), "--version", "1",
    )  # fmt: skip
    assert "p99.9" in done.stdout
    assert "#" in done.stdout
    assert "matrix (v1):" in done.stderr
    assert ", 0 failed" in done.stderr


def test_e14_a_server_that_stands_still_lifts_p99_by_as_much(server: RunningServer):
    """A worker stopped for 1 s of 4: the one request of a closed loop would not show it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "bench", "matrix", "--seconds", "4", "--rate", "50",
         "--arrivals", "constant", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(server),
    )  # fmt: skip
    before = _answered(server, "matrix")
    wait_until(lambda: _answered(server, "matrix") > before + 20, 60, "requests come")
    (worker,) = server.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        time.sleep(1.0)
    finally:
        os.kill(worker, signal.SIGCONT)
    report = json.loads(process.communicate(timeout=60)[0])
    assert report["failed"] == 0
    assert report["succeeded"] == report["sent"] == 200
    assert report["p99_ms"] >= 700


def test_bench_says_what_is_wrong_before_it_measures(server: RunningServer, tmp_path: Path):
    """An unknown model, and a request that the server refuses, with the server's words."""
    gone = ramrack(server, "bench", "nope")
    assert gone.returncode == 1
    assert "'nope' is not known" in gone.stderr
    wrong = tmp_path / "rows.json"
    wrong.write_text("[[1, 2]]")
    refused = ramrack(server, "bench", "matrix", "--input", str(wrong))
    assert refused.returncode == 1
    assert "the request is not answered: 400" in refused.stderr
    nowhere = ramrack(server, "bench", "matrix", "--html", str(tmp_path / "no" / "run.html"))
    assert nowhere.returncode == 1
    assert "there is no folder" in nowhere.stderr


def test_ctrl_c_ends_bench_with_a_report_of_what_was_sent(server: RunningServer):
    """Nothing is lost, no process stays, and the code is not that of a finished run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "bench", "matrix", "--seconds", "600", "--rate", "50",
         "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(server),
        process_group=0,
    )  # fmt: skip
    before = _answered(server, "matrix")
    wait_until(lambda: _answered(server, "matrix") > before + 20, 60, "requests come")
    # As a terminal does it: to the whole group in the foreground.
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == 1, said
    # Two of the answers that were waited for were to requests that try whether there is one.
    assert 15 <= report["sent"] < 30_000
    assert report["failed"] == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def _answered(server: RunningServer, model: str) -> int:
    stats = server.data("GET", f"/v2/models/{model}/stats").json()["model_stats"]
    return int(stats[0]["inference_stats"]["success"]["count"])


def test_top_shows_one_table_or_one_document(server: RunningServer):
    """What is loaded, each with its rates; JSON has the same for scripts."""
    table = ramrack(server, "top", "--once", "--every", "0.2")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[0].split()[:3] == ["model", "ver", "state"]
    assert "matrix" in table.stdout
    assert "workers  0: serving" in table.stdout
    seen = json.loads(ramrack(server, "top", "--once", "--every", "0.2", "--json").stdout)
    assert [version["model"] for version in seen["versions"]] == ["matrix", "texts"]
    assert seen["workers"][0]["cpu"] is not None


def test_top_goes_on_in_a_pipe_until_ctrl_c(server: RunningServer):
    """One line of JSON after the other, and an end without an error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "top", "--json", "--every", "0.2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(server),
    )  # fmt: skip
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert len(lines[1]["versions"]) == 2
    assert (process.returncode, said) == (0, "")


def test_top_ends_at_q_on_a_terminal_and_gives_it_back(server: RunningServer):
    """A terminal of 80 columns: the table is drawn, q ends it with 0."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "top", "--every", "0.2"],
        stdin=child, stdout=child, stderr=child, start_new_session=True,
        env=environ(server) | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"},
    )  # fmt: skip
    os.close(child)
    seen = b""
    while b"memory" not in seen:
        seen += os.read(parent, 4096)
    os.write(parent, b"q")
    drain = threading.Thread(target=_drain, args=(parent,))
    drain.start()
    assert process.wait(60) == 0
    drain.join(60)
    os.close(parent)
    assert b"matrix" in seen
    assert b"q: end" in seen


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:
        return  # the other side is closed

"""``ramrack tune`` on real servers: what it measures, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.convert.onnx_file import package_onnx
from registry.store import Store
from serving.cli.made_requests import request_of
from serving.cli.tune_rig import Effort, rig
from serving.cli.tune_space import Candidate
from serving.cli.tune_store import package_of
from tests import graphs
from tests.process.server import children_of, process_exists, wait_until
from tests.store_driver import publish_package

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store") as opened:
        publish_package(opened, package_onnx("m", graphs.gemm()))
    return tmp_path / "store"


def test_a_candidate_is_measured_on_a_server_of_its_own(store: Path, tmp_path: Path):
    """Its settings are in force, requests are answered, and the store that was read stays."""
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    package, _ = package_of(store, "m", None)
    pids: set[int] = set()
    # Other tests of this process may have left a helper of their library running.
    others = set(children_of(os.getpid()))

    def make(url: str):
        pids.update(set(children_of(os.getpid())) - others)
        return request_of(url, "", "m", rows=2)

    candidate = Candidate(workers=1, threads_per_worker=1, inline_ms=0.0, batching=False)
    with rig(tmp_path, package, 30_000.0, make) as servers:
        assert servers.prepare() > 0
        found = servers.measure(candidate, 20.0, Effort(0.3, 1.5, 2), 600.0, time.monotonic() + 600)
        config = (servers.work / "ramrack.toml").read_text()
        log = (servers.work / "server.log").read_text()
    assert found.rate >= 20.0
    assert found.probes == 2
    assert config.splitlines() == ["workers = 1", "threads_per_worker = 1", "inline_ms = 0"]
    assert '"listening"' in log
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert pids
    assert not any(process_exists(pid) for pid in pids)
    assert list(tmp_path.glob("ramrack-tune-*")) == []


def started(store: Path) -> tuple[subprocess.Popen[str], int]:
    """A search under way, and the pid of the server that it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.cli", "tune", "m", "--p99-ms", "20", "--store", str(store),
         "--minutes", "30"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: _serving_child(process.pid) > 0, 60, "tune has started a server")
    return process, _serving_child(process.pid)


def _serving_child(pid: int) -> int:
    """Return the child that has workers of its own; 0 for none yet."""
    for child in children_of(pid):
        try:
            if children_of(child):
                return child
        except OSError:
            continue
    return 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_ended_takes_its_servers_with_it(store: Path, number: signal.Signals):
    """Neither a process nor a folder stays, and the code says that it did not finish."""
    process, server = started(store)
    workers = children_of(server)
    process.send_signal(number)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 1, said
    assert "Traceback" not in said
    assert not any(process_exists(pid) for pid in (server, *workers))
    assert list(store.parent.glob("ramrack-tune-*")) == []


def test_a_search_that_is_killed_leaves_no_server(store: Path):
    """Nobody can clean up then: the kernel tells the server, and it stops in order."""
    process, server = started(store)
    workers = children_of(server)
    process.kill()
    process.communicate(timeout=60)
    wait_until(
        lambda: not any(process_exists(pid) for pid in (server, *workers)), 90,
        "the server has ended by itself",
    )  # fmt: skip

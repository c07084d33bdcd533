"""Versions that kill, hang or fail the workers: they end as FAILED, and the others serve."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from onnx import TensorProto

from tests import graphs
from tests.process.server import (
    RunningServer,
    infer_body,
    process_exists,
    running_server,
    start_server,
    wait_until,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(
        tmp_path_factory.mktemp("hostile"),
        workers=2,
        settings={"max_run_s": 0.2},
        module="tests.process.hostile_server",
    ) as running:
        running.push("good", graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    """One server for all tests: each leaves it as it found it, or has found a defect."""
    running.wait_until_ready()
    return running


def restarts_of(server: RunningServer) -> list[int]:
    return [worker["restarts"] for worker in server.workers()]


def state_of(server: RunningServer, name: str, version: int = 1) -> tuple[str, str]:
    found = server.expect(server.admin("GET", f"/admin/v1/models/{name}/versions/{version}"))
    return found["state"], found["reason"]


def is_good_serving(server: RunningServer) -> bool:
    return server.infer("good", [ROW]).json()["outputs"][0]["data"] == ROW


@pytest.mark.parametrize("name", ["kills-on-load", "exits-on-load"])
def test_f11_a_version_that_kills_every_worker_that_loads_it_ends_failed(
    server: RunningServer, name: str
) -> None:
    """The load is answered with the reason, the server lives, the others serve after it."""
    server.push(name, graphs.id32(), is_loading=False)
    answer = server.load(name, 1)
    assert answer.status_code >= 400, answer.text
    assert "when 3 workers died" in answer.json()["error"]
    server.wait_until_ready()
    assert state_of(server, name)[0] == "FAILED"
    assert "when 3 workers died" in state_of(server, name)[1]
    assert is_good_serving(server)
    assert server.process.poll() is None
    assert server.infer(name, [ROW]).status_code == 503


def test_a_version_that_fails_in_the_workers_only_changes_nothing_else(
    server: RunningServer,
) -> None:
    """The reason of the worker is the operation's, and no worker was lost."""
    before = restarts_of(server)
    server.push("fails-in-a-worker", graphs.id32(), is_loading=False)
    answer = server.load("fails-in-a-worker", 1)
    assert "it does not like workers" in answer.json()["error"]
    assert state_of(server, "fails-in-a-worker")[0] == "FAILED"
    assert restarts_of(server) == before
    assert is_good_serving(server)


def test_a_version_running_at_three_crashes_is_quarantined(server: RunningServer) -> None:
    """Each crash costs its own caller only; after the third the route goes back by itself."""
    name = "crashes-on-run"
    server.push(name, graphs.id32())
    second = server.push(name, graphs.identity(TensorProto.FLOAT, ("rows", 4)))
    path = f"/admin/v1/models/{name}/route"
    split = {"split": [{"version": second, "weight": 100}]}
    server.expect(server.admin("PUT", path, json=split))
    for _ in range(3):
        server.wait_until_ready()
        with pytest.raises(httpx.TransportError):
            server.infer(name, [ROW])
    wait_until(lambda: state_of(server, name, second)[0] == "FAILED", 60, "it is quarantined")
    assert "SIGSEGV" in state_of(server, name, second)[1]
    route = server.expect(server.admin("GET", path))
    assert (route["split"], route["previous"]) == ([{"version": 1, "weight": 100}], None)
    assert state_of(server, name)[0] == "READY"
    server.wait_until_ready()
    assert is_good_serving(server)
    asked = f"/v2/models/{name}/versions/{second}/infer"
    assert server.data("POST", asked, json=infer_body([ROW])).status_code == 503


def test_f16_a_run_that_cannot_be_ended_costs_its_worker(server: RunningServer) -> None:
    """Its caller gets a 504, the worker is replaced, the others are fine meanwhile."""
    before = restarts_of(server)
    server.push("never-ends", graphs.id32())
    assert server.infer("never-ends", [ROW]).status_code == 504
    assert is_good_serving(server)
    wait_until(lambda: restarts_of(server) != before, 60, "the stuck worker is replaced")
    reasons = {worker["reason"] for worker in server.workers()}
    assert "a run of never-ends/1 could not be ended" in reasons
    server.wait_until_ready()
    assert is_good_serving(server)


def test_a_run_that_never_ends_leaves_no_orphan(tmp_path: Path) -> None:
    """A worker whose parent was killed ends, although a thread of it is stuck for good."""
    settings = {"max_run_s": 0.2, "stop_timeout_s": 1}
    module = "tests.process.hostile_server"
    with running_server(tmp_path, settings=settings, module=module) as server:
        server.push("never-ends", graphs.id32())
        assert server.infer("never-ends", [ROW]).status_code == 504
        pids = server.worker_pids()
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        wait_until(lambda: not any(map(process_exists, pids)), 60, "the worker is gone")


def test_workers_that_cannot_start_end_the_server(tmp_path: Path) -> None:
    """Exit code 1, and the last line says what the worker died of."""
    server = start_server(tmp_path, workers=2, module="tests.process.stillborn_server")
    assert server.wait(60) == 1
    assert server.text == [
        "ramrack: no worker can start: 5 attempts in each slot, the last one no such library"
    ]

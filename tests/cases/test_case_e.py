"""Cases of operations on real processes: metrics of the dead, readiness, kills, and load tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import graphs
from tests.cases.rig import ROW, metric, steady_traffic, tensor
from tests.process.server import RunningServer, infer_body, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
ENDLESS = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]}]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("e"), workers=2) as running:
        running.push("witness", graphs.id32())
        running.push("stuck", graphs.endless())
        yield running


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    """The server, with all workers back that a former test killed."""
    running.wait_until_ready()
    return running


def post(connection: socket.socket, path: str, body: object) -> None:
    """Send one request and read nothing."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)


def connected(server: RunningServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answered(server: RunningServer) -> float:
    return metric(server, "ramrack_requests_total", model="witness", code="200")


def stuck_requests(server: RunningServer) -> float:
    return metric(server, "ramrack_in_flight", model="stuck")


def series_of(server: RunningServer) -> set[str]:
    lines = server.admin("GET", "/metrics").text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@contextlib.contextmanager
def under_way(server: RunningServer, count: int) -> Iterator[list[socket.socket]]:
    """Endless requests that run or wait in the workers, and are gone with them at the end."""
    clients = [connected(server) for _ in range(count)]
    try:
        for client in clients:
            post(client, "/v2/models/stuck/infer", ENDLESS)
        wait_until(lambda: stuck_requests(server) == count, 30, "all are under way")
        yield clients
    finally:
        kill_workers(server)
        for client in clients:
            client.close()


def kill_workers(server: RunningServer) -> None:
    """Kill every worker, and wait until all are back."""
    restarts = metric(server, "ramrack_worker_restarts_total")
    victims = server.worker_pids()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: metric(server, "ramrack_worker_restarts_total") == restarts + len(victims),
        30,
        "the deaths are noticed",
    )
    server.wait_until_ready()


def read_end(client: socket.socket) -> bytes:
    """Return the start of an answer, or nothing where the connection was closed instead."""
    try:
        return client.recv(12)
    except ConnectionResetError:
        return b""


def test_e01_counters_stay_and_gauges_go_with_a_killed_worker(server: RunningServer) -> None:
    """Totals never fall, and what was in flight in the dead is in flight nowhere."""
    for _ in range(30):
        assert server.infer("witness", [ROW]).status_code == 200
    before = answered(server)
    with under_way(server, 4):
        pass
    assert answered(server) == before
    assert stuck_requests(server) == 0
    assert server.infer("witness", [ROW]).status_code == 200
    assert answered(server) == before + 1
    # Not one more for the two that were killed: a slot is up or it is not.
    assert metric(server, "ramrack_worker_up") == 2


def test_e02_replaced_workers_add_no_series(server: RunningServer) -> None:
    """A worker is known by its slot, not by its pid."""
    kill_workers(server)
    before = series_of(server)
    kill_workers(server)
    assert series_of(server) == before


def test_e04_counters_need_no_folder_and_begin_anew(tmp_path: Path, server: RunningServer) -> None:
    """A second server counts its own requests only, from zero after each start, and reads or
    writes no folder that another program's variable names.
    """
    (stale := tmp_path / "stale").mkdir()
    (stale / "counter_1.db").write_bytes(b"\xff" * 64)
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(stale), "prometheus_multiproc_dir": "/nowhere"}
    before = answered(server)
    for start in range(2):
        with running_server(tmp_path, workers=1, environ=environ) as own:
            if start == 0:
                own.push("witness", graphs.id32())
            assert answered(own) == 0
            assert own.infer("witness", [ROW]).status_code == 200
            assert answered(own) == 1
    assert answered(server) == before
    assert [path.name for path in stale.iterdir()] == ["counter_1.db"]


def test_e05_names_that_nobody_has_make_no_series(server: RunningServer) -> None:
    """Unknown models, versions, paths and verbs share what is there already."""
    ask = [
        lambda i: ("POST", f"/v2/models/unknown-{i}/infer"),
        lambda i: ("POST", f"/v2/models/witness/versions/{i + 1000}/infer"),
        lambda i: ("GET", f"/scan/{i}/.env"),
        lambda i: (f"VERB{i}", "/v2/models/witness"),
    ]

    def scan(start: int) -> None:
        for i in range(start, start + 25):
            for path in ask:
                assert 400 <= server.data(*path(i), json=infer_body([ROW])).status_code < 500

    scan(0)
    before = series_of(server)
    scan(25)
    assert series_of(server) == before


def test_e07_a_load_leaves_the_server_ready(server: RunningServer) -> None:
    """Ready before, while and after another model loads; that one is ready with its load."""
    version = server.push("later", graphs.big(16), is_loading=False)
    assert server.data("GET", "/v2/models/later/ready").status_code == 503
    path = f"/admin/v1/models/later/versions/{version}:load"
    operation = server.expect(server.admin("POST", path))["id"]
    seen = []

    def is_over() -> bool:
        seen.append(server.data("GET", "/v2/health/ready").status_code)
        seen.append(server.data("GET", "/v2/models/witness/ready").status_code)
        state = server.expect(server.admin("GET", f"/admin/v1/operations/{operation}"))["state"]
        return bool(state == "succeeded")

    with steady_traffic(server):
        wait_until(is_over, 60, "the load is over")
    assert set(seen) == {200}
    assert server.data("GET", "/v2/models/later/ready").status_code == 200


def test_e10_health_and_metrics_answer_while_every_core_runs(server: RunningServer) -> None:
    """Runs are not on the event loop, not even those of a model that never ends."""
    with under_way(server, 4):
        for _ in range(10):
            assert server.data("GET", "/v2/health/live").status_code == 200
            assert server.data("GET", "/v2/health/ready").status_code == 200
            assert server.data("GET", "/v2/models/witness").status_code == 200
        # They were under way all the while: none had ended, and none was answered in between.
        assert stuck_requests(server) == 4


def test_e13_requests_of_a_killed_worker_end(server: RunningServer) -> None:
    """Its ten clients get 503 or the end of the connection, not the deadline's 504."""
    with under_way(server, 10) as clients:
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert {read_end(client) for client in clients} <= {b"", b"HTTP/1.1 503"}
        server.wait_until_ready()
        assert server.infer("witness", [ROW]).status_code == 200


class ClosedLoop:
    """A client that asks on one connection without a pause, for as long as the server keeps it."""

    def __init__(self, server: RunningServer, body: bytes) -> None:
        self.connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=90)
        self.body = body
        self.statuses: list[int] = []

    def run(self) -> None:
        self.connection.connect()
        is_last = False
        while not is_last:
            self.connection.request("POST", "/v2/models/slow/infer", self.body)
            with self.connection.getresponse() as answer:
                json.loads(answer.read())
                self.statuses.append(answer.status)
                is_last = answer.getheader("connection") == "close"


def test_e08_a_stop_answers_what_was_sent(tmp_path: Path) -> None:
    """Clients that never pause get a whole answer to each request, and are told of the last one."""
    body = json.dumps({"inputs": [tensor("X", "FP32", [1, 1], [1.0])]}).encode()
    with running_server(tmp_path, workers=2) as server:
        server.push("slow", graphs.slow(k=10, width=256))
        loops = [ClosedLoop(server, body) for _ in range(16)]
        with ThreadPoolExecutor(len(loops)) as threads:
            clients = [threads.submit(loop.run) for loop in loops]
            wait_until(lambda: all(loop.statuses for loop in loops), 60, "each has an answer")
            server.signal(signal.SIGTERM)
            # It raises what the client met: a reset, or an end without an answer.
            for client in clients:
                client.result(timeout=120)
        assert server.wait() == 0
    assert {status for loop in loops for status in loop.statuses} <= {200, 503}

"""The whole server as real processes: kills, stops and starts."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import graphs
from tests.process.server import (
    RunningServer,
    children_of,
    process_exists,
    running_server,
    start_server,
    wait_until,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), workers=2) as running:
        running.push("id32", graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    """One server for the tests that it outlives; workers that they kill are back for the next."""
    running.wait_until_ready()
    return running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server for a test that ends it."""
    with running_server(tmp_path, workers=2) as running:
        yield running


def restarts_of(server: RunningServer) -> list[int]:
    return [worker["restarts"] for worker in server.workers()]


def answer_of(response: httpx.Response) -> list[float]:
    assert response.status_code == 200, response.text
    data: list[float] = response.json()["outputs"][0]["data"]
    return data


def test_a_killed_worker_comes_back(server: RunningServer) -> None:
    """Siblings answer while a killed worker is away, and it comes back with the same versions."""
    assert answer_of(server.infer("id32", [ROW])) == ROW
    before = restarts_of(server)
    victim, sibling = server.worker_pids()
    os.kill(victim, signal.SIGKILL)
    for _ in range(50):
        assert answer_of(server.infer("id32", [ROW])) == ROW
    wait_until(lambda: restarts_of(server) != before, 60, "the death is noticed")
    server.wait_until_ready()
    first, second = server.workers()
    assert first["pid"] not in (victim, sibling)
    assert second["pid"] == sibling
    assert first["generation"] == second["generation"]
    assert first["reason"] == "killed by SIGKILL"
    os.kill(sibling, signal.SIGKILL)
    # Only the replacement can answer now.
    assert answer_of(server.infer("id32", [ROW])) == ROW
    wait_until(lambda: sibling not in server.worker_pids(), 60, "the second death is noticed")
    server.wait_until_ready()


def test_workers_hold_little_memory_before_a_model_is_loaded(server: RunningServer) -> None:
    """The base of a worker is under 200 MB of private memory."""
    for pid in server.worker_pids():
        status = Path(f"/proc/{pid}/status").read_text()
        anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        assert int(anonymous.split()[1]) < 200 * 1000


def test_d07_an_idle_worker_has_few_threads(server: RunningServer) -> None:
    """No pool is made before it is needed."""
    for pid in server.worker_pids():
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) <= 16


def test_the_parent_never_maps_the_runtime(server: RunningServer) -> None:
    """onnxruntime is in the workers only; nothing that a model does can harm the parent."""
    assert "onnxruntime" not in Path(f"/proc/{server.pid}/maps").read_text()
    assert "onnxruntime" in Path(f"/proc/{server.worker_pids()[0]}/maps").read_text()


def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    """They answer what was sent, nobody is left behind, and a new server serves the same."""
    with running_server(tmp_path, workers=2) as server:
        server.push("id32", graphs.id32())
        pids = server.worker_pids()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
            os.kill(server.pid, signal.SIGKILL)
            answers = b""
            while more := client.recv(65536):
                answers += more
        # All that were pipelined, and then the end of the connection, not a reset.
        assert answers.count(b"HTTP/1.1 200") == 50
        server.wait()
        wait_until(lambda: not any(map(process_exists, pids)), 60, "the workers are gone")
    with running_server(tmp_path, workers=2) as server:
        assert answer_of(server.infer("id32", [ROW])) == ROW


def test_a_terminal_s_interrupt_stops_in_order(own_server: RunningServer) -> None:
    """Ctrl-C reaches the whole group; the workers leave the stop to the parent."""
    server = own_server
    for pid in [*server.worker_pids(), server.pid]:
        os.kill(pid, signal.SIGINT)
    assert server.wait() == 0
    assert server.text == []


def test_connections_in_the_backlog_are_answered_at_a_stop(own_server: RunningServer) -> None:
    """What the kernel accepted before the stop is answered, although no worker had seen it."""
    server = own_server
    server.push("id32", graphs.id32())
    host, port = server.url.removeprefix("http://").split(":")
    pids = server.worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    clients = [socket.create_connection((host, int(port)), timeout=20) for _ in range(20)]
    for client in clients:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
    server.signal(signal.SIGTERM)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    answers = [client.recv(65536) for client in clients]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert server.wait() == 0
    for client in clients:
        client.close()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Who asks twice does not want to wait for a client that never ends its request."""
    with running_server(tmp_path, workers=1) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(
                b"POST /v2/models/x/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
            )
            pids = server.worker_pids()
            server.signal(signal.SIGTERM)
            server.wait_for_log("stopping")
            server.signal(signal.SIGTERM)
            assert server.wait(10) == 1
        wait_until(lambda: not any(map(process_exists, pids)), 60, "the workers are gone")


def test_ctrl_c_during_the_start_reaches_the_parent_alone(tmp_path: Path) -> None:
    """A terminal signals its whole group: workers that still import stay out of it, and quiet."""
    server = start_server(tmp_path, workers=2)
    try:

        def have_own_groups() -> bool:
            # Each leaves ours between its fork and its first program.
            children = children_of(server.pid)
            return len(children) == 2 and all(os.getpgid(child) == child for child in children)

        wait_until(have_own_groups, 60, "each worker is in a group of its own")
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait() == 0
    finally:
        server.stop()
    assert server.text == []


def test_tokens_guard_the_data_plane_and_reach_workers_as_hashes(tmp_path: Path) -> None:
    """With data_auth the token of the environment opens both planes; no worker knows its text."""
    secret = "a-secret-of-the-owner"
    settings = {"data_auth": "token", "admin_token": secret}
    with running_server(tmp_path, settings=settings, is_waiting=False) as server:
        owner = {"authorization": f"Bearer {secret}"}
        wait_until(lambda: server.data("GET", "/v2/health/ready").status_code == 200, 60, "ready")
        refused = server.data("GET", "/v2/models")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert server.data("GET", "/v2/models", headers=owner).json() == {"models": []}
        for pid in children_of(server.pid):
            assert secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert secret not in server.stderr()


# Starts that cannot be.


def failed_start(folder: Path, **settings: object) -> str:
    """Return the one line that a start which must fail leaves on stderr."""
    server = start_server(folder, settings=settings)
    assert server.wait() == 1
    assert len(server.text) == 1, server.stderr()
    return server.text[0]


def test_a_second_server_on_the_store_is_refused(server: RunningServer) -> None:
    """Exit code 1 and one line that says who holds it."""
    line = failed_start(server.store.parent)
    assert line.startswith("ramrack: ")
    assert f"in use by process {server.pid}" in line


@pytest.mark.parametrize("plane", ["port", "admin_port"])
def test_a_port_in_use_is_refused(tmp_path: Path, plane: str) -> None:
    """Exit code 1 and one line that names plane, address and reason, and which flag to use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failed_start(tmp_path, **{plane: port})
    name = "data plane" if plane == "port" else "admin plane"
    flag = "--" + plane.replace("_", "-")
    assert line == (
        f"ramrack: {name} address 127.0.0.1:{port} is in use by another process: stop it, or take "
        f"another {flag} (0: any free one)"
    )


def test_an_admin_plane_open_to_others_needs_a_token(tmp_path: Path) -> None:
    """Exit code 1 and one line that says what to set."""
    assert "RAMRACK_ADMIN_TOKEN" in failed_start(tmp_path, admin_host="0.0.0.0")


def test_settings_that_are_wrong_are_refused(tmp_path: Path) -> None:
    """Exit code 1 and one line that names the setting and its limit."""
    assert failed_start(tmp_path, workers=-1).startswith("ramrack: RAMRACK_WORKERS: ")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file", "is a file, not a folder"),
        ("file/store", "Not a directory"),
        ("full", "is not a store and not empty (it holds 'letter.txt')"),
    ],
)
def test_a_store_that_cannot_be_made_is_refused(tmp_path: Path, name: str, says: str) -> None:
    """One line has the setting as the user gave it, what is wrong there, and what to change."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("x")
    line = failed_start(tmp_path, store=tmp_path / name)
    assert line.startswith(f"ramrack: store '{tmp_path / name}': ")
    assert says in line
    assert "--store" in line


def test_a_data_plane_that_nobody_could_use_is_refused(tmp_path: Path) -> None:
    """Exit code 1 and one line that says what to set."""
    assert "RAMRACK_ADMIN_TOKEN" in failed_start(tmp_path, data_auth="token")


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    """TLS files are read before anything is said to listen."""
    (tmp_path / "cert.pem").write_text("no certificate")
    line = failed_start(tmp_path, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "cert.pem")
    assert line.startswith("ramrack: ")


def test_subprocess_is_stopped_by_its_pid(tmp_path: Path) -> None:
    """The helper of these tests ends what it started even if a test forgets it."""
    with running_server(tmp_path) as server:
        process = server.process
    assert process.poll() == 0
    assert isinstance(process, subprocess.Popen)

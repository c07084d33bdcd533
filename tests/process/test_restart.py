"""Restarts of real servers under their clients: rolling, and with what clients leave open."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import graphs
from tests.process.server import (
    ROOT,
    RunningServer,
    infer_body,
    process_exists,
    running_server,
    wait_until,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
# A silent connection is closed after this, whichever worker has it.
PATIENT = {"header_timeout_s": 60}
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), workers=2, settings=PATIENT) as running:
        running.push("id32", graphs.id32())
        yield running


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    running.wait_until_ready()
    return running


class Client:
    """A client that keeps one connection and sends one request after another, each with a nonce."""

    def __init__(self, server: RunningServer, number: int) -> None:
        self._address = address_of(server)
        self._nonce = float(number * 100_000)
        self.answered = 0
        self.closed = 0
        self.is_done = False

    async def run(self) -> None:
        """Go on until ``is_done``; an answer that is not whole, right and good raises."""
        reader, writer = await asyncio.open_connection(*self._address)
        while not self.is_done:
            self._nonce += 1
            row = [self._nonce, 0.0, 0.0, 0.0]
            body = json.dumps(infer_body([row])).encode()
            head = f"POST /v2/models/id32/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
            writer.write(head.encode() + b"\r\n\r\n" + body)
            head_lines, content = await answer_from(reader)
            assert head_lines[0].startswith("http/1.1 200"), content
            assert json.loads(content)["outputs"][0]["data"] == row
            self.answered += 1
            if "connection: close" in head_lines:
                self.closed += 1
                writer.close()
                reader, writer = await asyncio.open_connection(*self._address)
        writer.close()


def address_of(server: RunningServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def answer_from(reader: asyncio.StreamReader) -> tuple[list[str], bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next(int(x.split(":")[1]) for x in lines if x.startswith("content-length"))
    return lines, await reader.readexactly(length)


async def under_load(server: RunningServer, change: object) -> list[Client]:
    """Run ``change`` in a thread while eight clients ask; return them when both are over."""
    clients = [Client(server, number + 1) for number in range(8)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
        while min(client.answered for client in clients) < 5:  # noqa: ASYNC110 - as real clients
            await asyncio.sleep(0.01)
        await asyncio.to_thread(change)  # type: ignore[arg-type]
        enough = [client.answered + 5 for client in clients]
        while any(  # noqa: ASYNC110
            c.answered < n for c, n in zip(clients, enough, strict=True)
        ):
            await asyncio.sleep(0.01)
        for client in clients:
            client.is_done = True
    return clients


def received(client: socket.socket, answers: int) -> bytes:
    data = b""
    while data.count(b'"live":') < answers and (more := client.recv(65536)):
        data += more
    return data


def roll(server: RunningServer) -> dict:
    answer = server.admin("POST", "/admin/v1/workers:restart", params={"wait": 60})
    return server.expect(answer)


async def test_a_rolling_restart_under_load_loses_nothing(server: RunningServer) -> None:
    """Every worker is new, every request got its own answer, and no connection was closed."""
    before = server.worker_pids()
    clients = await under_load(server, lambda: roll(server))
    after = server.worker_pids()
    assert not set(before) & set(after)
    assert not any(map(process_exists, before))
    assert [client.closed for client in clients] == [0] * 8
    assert {w["reason"] for w in server.workers()} == {"replaced by a rolling restart"}


def test_open_connections_outlive_the_workers_that_accepted_them(server: RunningServer) -> None:
    """Silent ones, used ones, and one in the middle of its head go on in the new workers."""
    silent, used, half = (socket.create_connection(address_of(server), 20) for _ in range(3))
    with silent, used, half:
        used.sendall(LIVE)
        assert received(used, 1).startswith(b"HTTP/1.1 200")
        half.sendall(LIVE[:20])
        before = server.worker_pids()
        begun = server.expect(server.admin("POST", "/admin/v1/workers:restart", json={}))
        assert (begun["kind"], begun["model"], begun["state"]) == ("restart", None, "running")
        wait_until(lambda: server.worker_pids()[0] != before[0], 60, "a worker is new")
        half.sendall(LIVE[20:] + LIVE)
        assert received(half, 2).count(b"HTTP/1.1 200") == 2
        path = f"/admin/v1/operations/{begun['id']}"
        wait_until(
            lambda: server.admin("GET", path).json()["state"] == "succeeded", 60, "all are new"
        )
        for client in (silent, used, half):
            client.sendall(LIVE)
            assert received(client, 1).startswith(b"HTTP/1.1 200")


def test_counters_go_on_through_a_rolling_restart(server: RunningServer) -> None:
    """What the old workers counted stays in the sums, and each slot has one live worker."""

    def requests() -> float:
        page = server.admin("GET", "/metrics").text
        lines = [x for x in page.splitlines() if x.startswith("ramrack_requests_total{")]
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if 'model="id32"' in x)

    before = requests()
    server.expect(server.infer("id32", [[1.0, 2.0, 3.0, 4.0]]))
    roll(server)
    server.expect(server.infer("id32", [[1.0, 2.0, 3.0, 4.0]]))
    assert requests() == before + 2
    page = server.admin("GET", "/metrics").text
    up = [x for x in page.splitlines() if x.startswith("ramrack_worker_up{")]
    assert sorted(up) == ['ramrack_worker_up{slot="0"} 1', 'ramrack_worker_up{slot="1"} 1']


def test_sighup_replaces_the_workers(server: RunningServer) -> None:
    """The signal does what the command does, and the change is in the record."""
    before = server.worker_pids()
    since = server.admin("GET", "/admin/v1/events").json()["next"]
    server.signal(signal.SIGHUP)

    def events() -> list:
        return server.admin("GET", "/admin/v1/events", params={"since": since}).json()["events"]

    wait_until(lambda: bool(events()), 60, "the restart is recorded")
    assert [(e["kind"], e["reason"]) for e in events()] == [("restart", "SIGHUP")]
    assert not set(before) & set(server.worker_pids())


async def test_a_stop_during_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    """Old, new and coming workers answer what they accepted, and the server ends in order."""
    with running_server(tmp_path, workers=2, settings=PATIENT) as server:
        server.push("id32", graphs.id32())
        reader, writer = await asyncio.open_connection(*address_of(server))
        before = server.worker_pids()
        server.expect(server.admin("POST", "/admin/v1/workers:restart", json={}))
        await asyncio.to_thread(
            wait_until, lambda: server.worker_pids() != before, 60, "one worker is new"
        )
        writer.write(LIVE)
        server.signal(signal.SIGTERM)
        lines, _ = await answer_from(reader)
        assert lines[0].startswith("http/1.1 200")
        assert await asyncio.to_thread(server.wait) == 0, server.stderr()
        writer.close()


# Upgrades: the server goes on as another program in the same process.


async def test_an_upgrade_under_load_loses_nothing(tmp_path: Path) -> None:
    """Same process, new workers, same versions; no request fails and no connection is closed.

    The record goes on. Counters begin at zero, all of them at one moment.
    """
    with running_server(tmp_path, workers=2, settings=PATIENT) as server:
        server.push("id32", graphs.id32())
        recorded = recorded_by(server)
        before = server.worker_pids()
        silent = socket.create_connection(address_of(server), 20)
        pages: list[dict[str, float]] = []

        def upgrade() -> None:
            with scraped(server, pages):
                done = command(server, "restart", "--upgrade", "--reason", "a new release")
            assert (done.returncode, done.stdout) == (
                0, "the new release serves with 2 workers\n",
            )  # fmt: skip

        with silent:
            clients = await under_load(server, upgrade)
            assert [client.closed for client in clients] == [0] * 8
            assert not set(before) & set(server.worker_pids())
            server.wait_for_log("took over")
            assert not any(map(process_exists, before))
            silent.sendall(LIVE)
            assert received(silent, 1).startswith(b"HTTP/1.1 200")
        now = recorded_by(server)
        assert now[: len(recorded)] == recorded
        assert [(e["kind"], e["reason"]) for e in now[len(recorded) :]] == [
            ("upgrade", "a new release")
        ]
        judge_metrics(pages)
        count = series_of(server)[REQUESTS]
        server.expect(server.infer("id32", [[1.0, 2.0, 3.0, 4.0]]))
        assert series_of(server)[REQUESTS] == count + 1
        # It is a server like any other: it takes changes, and stops in order.
        server.push("other", graphs.id64())
        assert server.stop() == 0
        assert server.text == []


REQUESTS = 'ramrack_requests_total{code="200",model="id32",version="1"}'
COUNTER = re.compile(r"\w+_(total|bucket|count|sum)\b")


def recorded_by(server: RunningServer) -> list[dict]:
    answer = server.admin("GET", "/admin/v1/events", params={"since": 0})
    return server.expect(answer)["events"]


def series_of(server: RunningServer) -> dict[str, float]:
    lines = server.admin("GET", "/metrics").text.splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {series: float(value) for series, _, value in pairs}


@contextlib.contextmanager
def scraped(server: RunningServer, pages: list[dict[str, float]]) -> Iterator[None]:
    """Read the metrics again and again inside, and once more at the end."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(0.02):
            with contextlib.suppress(httpx.TransportError):
                pages.append(series_of(server))

    pages.append(series_of(server))
    thread = threading.Thread(target=scrape, name="scraper")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    pages.append(series_of(server))


def judge_metrics(pages: list[dict[str, float]]) -> None:
    """Counters fall once, all at one moment, those of the process never; somebody is always up."""
    counters = [
        {series: value for series, value in page.items() if COUNTER.match(series)} for page in pages
    ]
    fallen = [
        {series for series in now.keys() & old.keys() if now[series] < old[series]}
        for old, now in itertools.pairwise(counters)
    ]
    (begin,) = [index for index, series in enumerate(fallen, 1) if series]
    assert not [series for series in fallen[begin - 1] if series.startswith("process_")]
    # Nothing that had counted much was carried over.
    old, now = counters[begin - 1], counters[begin]
    kept = {series for series in now.keys() & old.keys() if now[series] >= old[series] >= 100}
    assert kept == set()
    assert old[REQUESTS] > now.get(REQUESTS, 0)
    for page in pages:
        assert sum(v for series, v in page.items() if series.startswith("ramrack_worker_up")) > 0


def test_a_release_that_cannot_start_is_refused(tmp_path: Path) -> None:
    """The one that serves is asked, looks, and goes on."""
    broken = tmp_path / "site" / "sitecustomize.py"
    broken.parent.mkdir()
    with running_server(
        tmp_path, settings={}, environ={"PYTHONPATH": str(broken.parent)}
    ) as server:
        pids = server.worker_pids()
        broken.write_text("import sys\nif '-c' in sys.orig_argv: sys.exit('no such library')\n")
        why = "the new release cannot start: SystemExit: no such library"
        answer = server.admin("POST", "/admin/v1/server:upgrade", json={})
        assert (answer.status_code, answer.json()["error"]) == (409, why)
        server.signal(signal.SIGUSR2)
        server.wait_for_log(f"no upgrade: {why}")
        assert server.worker_pids() == pids


def command(server: RunningServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *arguments],
        env={**os.environ, "RAMRACK_ADMIN_URL": server.admin_url},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


# Sockets that a service manager holds.

ACTIVATE = (
    "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid());"
    "os.execv(sys.executable, [sys.executable, '-m', 'serving'])"
)


def activated(folder: Path, sockets: list[socket.socket]) -> RunningServer:
    """Start a server as systemd does: with open listeners from descriptor 3 on."""

    def place() -> None:
        for index, sock in enumerate(sockets):
            os.dup2(sock.fileno(), 100 + index)
        for index in range(len(sockets)):
            os.dup2(100 + index, 3 + index)

    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAMRACK_")}
    environ |= {
        "RAMRACK_STORE": str(folder), "RAMRACK_WORKERS": "2", "RAMRACK_LOG_FORMAT": "json",
        "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "data:admin",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", ACTIVATE],
        cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        close_fds=False, preexec_fn=place,
    )  # fmt: skip
    server = RunningServer(process, folder)
    where = server.wait_for_log("listening")
    server.url, server.admin_url = where["url"], where["admin_url"]
    return server


def test_connections_between_two_servers_wait_in_the_sockets_of_the_manager(
    tmp_path: Path,
) -> None:
    """Nobody is refused between a stop and the next start; what came meanwhile is answered."""
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=100) for _ in range(2)]
    try:
        first = activated(tmp_path / "store", sockets)
        first.wait_until_ready()
        assert address_of(first)[1] == sockets[0].getsockname()[1]
        first.push("id32", graphs.id32())
        with socket.create_connection(address_of(first), 20) as client:
            client.sendall(LIVE)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert first.stop() == 0
        waiting = [socket.create_connection(sockets[0].getsockname(), 20) for _ in range(20)]
        for client in waiting:
            client.sendall(LIVE)
        second = activated(tmp_path / "store", sockets)
        answers = [client.recv(65536) for client in waiting]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        for client in waiting:
            client.close()
        assert second.stop() == 0
    finally:
        for sock in sockets:
            sock.close()

"""Restarts of real servers under their clients: rolling, and with what clients leave open."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import graphs
from tests.process.server import (
    RunningServer,
    infer_body,
    process_exists,
    running_server,
    wait_until,
)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), workers=2) as running:
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
        assert used.recv(65536).startswith(b"HTTP/1.1 200")
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
            assert client.recv(65536).startswith(b"HTTP/1.1 200")


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
    assert sorted(up) == ['ramrack_worker_up{slot="0"} 1.0', 'ramrack_worker_up{slot="1"} 1.0']


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
    with running_server(tmp_path, workers=2) as server:
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
    """Same process, new workers, same versions; no request fails and no connection is closed."""
    with running_server(tmp_path, workers=2) as server:
        server.push("id32", graphs.id32())
        before = server.worker_pids()
        silent = socket.create_connection(address_of(server), 20)

        def upgrade() -> None:
            server.signal(signal.SIGUSR2)
            server.wait_for_log("took over")
            server.wait_until_ready()

        clients = await under_load(server, upgrade)
        assert [client.closed for client in clients] == [0] * 8
        assert not set(before) & set(server.worker_pids())
        assert not any(map(process_exists, before))
        with silent:
            silent.sendall(LIVE)
            assert silent.recv(65536).startswith(b"HTTP/1.1 200")
        # It is a server like any other: it takes changes, and stops in order.
        server.push("other", graphs.id64())
        assert server.stop() == 0
        assert server.text == []

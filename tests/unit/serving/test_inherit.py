"""Listeners that a start finds open: those of a service manager, and what is made of too few."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from registry.errors import InvalidInput
from serving.web.handover import ConnectionQueue
from serving.web.inherit import HANDOVER, take_inherited
from serving.web.sockets import close_all, fit_listeners, is_at, open_listeners

# Runs as a service does: descriptors from 3 on, and variables with the process id inside.
SERVICE = """
import json, os, sys
from serving.web.inherit import take_inherited
environ = dict(json.loads(sys.argv[1]), LISTEN_PID=str(os.getpid()))
try:
    found = take_inherited(environ)
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    ports = [s.getsockname()[1] for s in found.data]
    admin = found.admin.getsockname()[1] if found.admin else None
    print(json.dumps([ports, admin, found.is_lasting, environ]))
"""


def as_service(sockets: list[socket.socket], names: str) -> list:
    def place() -> None:
        for index, sock in enumerate(sockets):
            os.dup2(sock.fileno(), 100 + index)
        for index in range(len(sockets)):
            os.dup2(100 + index, 3 + index)

    environ = {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names}
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, json.dumps(environ)],
        stdout=subprocess.PIPE, check=True, close_fds=False, preexec_fn=place,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.slow
def test_sockets_of_a_service_manager_are_taken_by_name() -> None:
    """In any order; the variables are gone, so that no child takes them for its own."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    first, second, third = (sock.getsockname()[1] for sock in sockets)
    assert as_service(sockets, "data:admin:data") == [[first, third], second, True, {}]
    close_all(sockets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "told"),
    [("web", "is named 'web': set FileDescriptorName=data"), ("admin:admin", "pass one")],
)
def test_sockets_that_say_not_what_they_are_for_are_refused(names: str, told: str) -> None:
    """The error names the line of the unit file."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(names.count(":") + 1)]
    kind, text = as_service(sockets, names)
    assert kind == "InvalidInput"
    assert told in text
    close_all(sockets)


def test_what_is_meant_for_another_process_is_ignored() -> None:
    """Variables that a parent forgot to remove name descriptors that are not ours."""
    environ = {
        "LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "data",
        HANDOVER: json.dumps({"pid": os.getppid()}),
    }  # fmt: skip
    found = take_inherited(environ)
    assert (found.data, found.admin, found.is_lasting, environ) == ((), None, False, {})


def test_a_descriptor_that_is_no_tcp_socket_is_refused() -> None:
    """A unix socket in the unit file is a mistake that is told."""
    with socket.socket(socket.AF_UNIX) as sock:
        kind, text = as_service([sock], "data")
    assert (kind, text) == (
        InvalidInput.__name__, "socket 'data' of the service manager is not one of TCP",
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_listeners_are_made_to_fit_the_slots(count: int) -> None:
    """Too many: the first ones; too few: more on the same port, which accept as well."""
    found = open_listeners("127.0.0.1", 0, 2, "data plane")
    fitted = fit_listeners(found, count)
    assert len(fitted) == count
    assert len({sock.getsockname() for sock in fitted}) == 1
    assert is_at(fitted[0], "127.0.0.1", fitted[0].getsockname()[1], "data plane")
    assert not is_at(fitted[0], "127.0.0.1", 1, "data plane")
    close_all([*found, *fitted])


def test_a_listener_that_cannot_have_others_beside_it_is_shared() -> None:
    """One that was made without SO_REUSEPORT serves all slots."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        fitted = fit_listeners([sock], 2)
        assert os.fstat(fitted[1].fileno()).st_ino == os.fstat(sock.fileno()).st_ino
        close_all(fitted)


@pytest.fixture
def pair() -> Callable[[], tuple[socket.socket, socket.socket]]:
    return socket.socketpair


def test_connections_wait_in_their_queue_in_order(
    pair: Callable[[], tuple[socket.socket, socket.socket]],
) -> None:
    """What was put is whole at the other end, also when the sender's own copy is closed."""
    queue = ConnectionQueue.open()
    assert queue.get() is None
    clients = []
    for number in range(3):
        client, served = pair()
        clients.append(client)
        assert queue.put(served.fileno())
        client.sendall(f"request {number}".encode())
        served.close()
    for number, client in enumerate(clients):
        moved = queue.get()
        assert moved is not None
        assert moved.recv(100) == f"request {number}".encode()
        moved.close()
        assert client.recv(1) == b""
        client.close()
    queue.close()


def test_a_full_queue_takes_no_more_and_loses_nothing() -> None:
    """A worker keeps what does not fit, and tries again."""
    queue = ConnectionQueue.open()
    client, served = socket.socketpair()
    count = 0
    while queue.put(served.fileno()):
        count += 1
    assert count > 50
    for _ in range(count):
        moved = queue.get()
        assert moved is not None
        moved.close()
    assert queue.get() is None
    assert queue.put(served.fileno())
    for sock in (client, served):
        sock.close()
    queue.close()

"""Connections that wait for a worker that died go to those that live."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from serving.web.handover import ConnectionQueue, move_waiting


@pytest.fixture
def queues() -> Iterator[list[ConnectionQueue]]:
    """Three ways: two of siblings and that of the slot itself."""
    with contextlib.ExitStack() as stack:
        made = [ConnectionQueue.open() for _ in range(3)]
        for each in made:
            stack.callback(each.close)
        yield made


def taken(queue: ConnectionQueue) -> list[bytes]:
    found = []
    while (connection := queue.get()) is not None:
        with connection:
            connection.setblocking(True)
            found.append(connection.recv(16))
    return found


def test_waiting_connections_are_shared_out(queues: list[ConnectionQueue]) -> None:
    """In turn, each with what its client has sent; nothing waits in the listener any more."""
    first, second, own = queues
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        for number in range(4):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            client.sendall(str(number).encode())
        assert move_waiting(listener, [first, second], own) == 4
        assert (taken(first), taken(second), taken(own)) == ([b"0", b"2"], [b"1", b"3"], [])
        assert move_waiting(listener, [first, second], own) == 0


def test_what_finds_no_room_waits_for_the_next_worker(queues: list[ConnectionQueue]) -> None:
    """A sibling that takes nothing costs nobody the connection."""
    full, _, own = queues
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        while full.put(client.fileno()):
            pass
        client.sendall(b"late")
        assert move_waiting(listener, [full], own) == 1
        assert taken(own) == [b"late"]

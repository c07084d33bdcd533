"""Tests of the listening sockets."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from serving.web.sockets import (
    AddressUnavailable,
    close_all,
    open_listeners,
    refuse_new_connections,
    steer,
    url_of,
    waiting_connections,
)


@contextlib.contextmanager
def listening(count: int) -> Iterator[list[socket.socket]]:
    listeners = open_listeners("127.0.0.1", 0, count, "data plane")
    try:
        yield listeners
    finally:
        close_all(listeners)


def connect(listener: socket.socket, count: int) -> list[socket.socket]:
    return [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(count)]


def test_port_zero_gives_all_listeners_one_port() -> None:
    """The first bind picks the port, the others follow."""
    with listening(3) as listeners:
        assert len({item.getsockname() for item in listeners}) == 1
        assert listeners[0].getsockname()[1] > 0
        assert url_of(listeners[0], "127.0.0.1").startswith("http://127.0.0.1:")


def test_a_port_in_use_is_refused_although_it_could_be_shared() -> None:
    """A second server of the same user would get half of the first one's requests otherwise."""
    with listening(2) as listeners:
        port = listeners[0].getsockname()[1]
        with pytest.raises(
            AddressUnavailable,
            match=f"data plane address 127.0.0.1:{port} is in use by another process",
        ):
            open_listeners("127.0.0.1", port, 2, "data plane")


@pytest.mark.parametrize("host", ["256.0.0.1", "no such host"])
def test_an_address_that_is_none_is_refused(host: str) -> None:
    """The message names the plane and the address."""
    with pytest.raises(AddressUnavailable, match="admin plane address"):
        open_listeners(host, 0, 1, "admin plane")


def test_connections_wait_in_the_queue_and_are_counted() -> None:
    """Nobody accepts, and the kernel says how many wait."""
    with listening(1) as listeners:
        clients = connect(listeners[0], 5)
        assert waiting_connections(listeners[0]) == 5
        close_all(clients)


def test_new_connections_go_to_live_slots_only() -> None:
    """A dead worker's slot gets no new connection; with none alive all slots get some again."""
    with listening(3) as listeners:
        steer(listeners, [1])
        clients = connect(listeners[0], 12)
        assert [waiting_connections(item) for item in listeners] == [0, 12, 0]
        steer(listeners, [])
        clients += connect(listeners[0], 60)
        assert all(waiting_connections(item) for item in listeners)
        close_all(clients)


def test_refusing_keeps_what_was_accepted() -> None:
    """After the filter no client gets in, and those in the queue are still there."""
    with listening(1) as listeners:
        clients = connect(listeners[0], 2)
        refuse_new_connections(listeners[0])
        with socket.socket() as late:
            late.settimeout(0.1)
            with pytest.raises(TimeoutError):
                late.connect(listeners[0].getsockname())
        assert waiting_connections(listeners[0]) == 2
        accepted, _ = listeners[0].accept()
        clients[0].sendall(b"x")
        assert accepted.recv(1) == b"x"
        close_all([accepted, *clients])


def test_ipv6_url_has_brackets() -> None:
    """An IPv6 address is written as URLs want it."""
    with listening(1) as listeners:
        assert url_of(listeners[0], "::1", is_tls=True).startswith("https://[::1]:")

"""Connections that have sent nothing yet, on a loop whose clock the test drives."""

from __future__ import annotations

from typing import Any

import pytest

from serving.web.silent import SilentConnection, SilentConnections
from tests.driven_loop import DrivenLoop

WAIT_S = 5.0


class Usual:
    """As much of a usual connection as a silent one needs."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self.transport: Any = None
        self.received = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data


class Transport:
    def __init__(self) -> None:
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Door:
    """A server's silent connections, and the usual ones that were made."""

    def __init__(self) -> None:
        self.loop = DrivenLoop()
        self.made: list[Usual] = []
        self.connections: set[Any] = set()
        self.silent = SilentConnections(
            self.loop, self._make, WAIT_S, self.connections  # type: ignore[arg-type]
        )  # fmt: skip

    def _make(self) -> Any:
        self.made.append(Usual())
        return self.made[-1]

    def accept(self) -> SilentConnection:
        connection = SilentConnection(self.silent)
        connection.connection_made(Transport())  # type: ignore[arg-type]
        return connection


@pytest.fixture
def door() -> Door:
    return Door()


def test_thousands_that_open_and_leave_cost_one_timer_and_leave_nothing(door: Door) -> None:
    """No usual connection is made for them."""
    for _ in range(1000):
        connection = door.accept()
        assert door.connections == {connection}
        connection.connection_lost(None)
    assert (door.connections, door.made, len(door.loop.timers)) == (set(), [], 1)
    door.loop.advance(WAIT_S)
    assert door.loop.armed == []


def test_the_first_byte_makes_a_usual_one_that_knows_how_long_it_was_silent(door: Door) -> None:
    """The deadline of a head counts from the accept; what came is not lost."""
    connection = door.accept()
    door.loop.advance(3)
    connection.data_received(b"GET")
    (usual,) = door.made
    assert (usual.received, usual.silent_s) == (b"GET", 3)
    assert usual.transport is connection.transport
    assert connection.transport.protocol is usual  # type: ignore[attr-defined]
    assert door.connections == set()


def test_each_has_its_own_time(door: Door) -> None:
    """One timer goes from the first one that is due to the next."""
    door.accept()
    door.loop.advance(2)
    door.accept()
    door.loop.advance(3)
    assert [usual.silent_s for usual in door.made] == [5]
    door.loop.advance(2)
    assert [usual.silent_s for usual in door.made] == [5, 5]
    assert (door.connections, door.loop.armed) == (set(), [])


def test_a_stop_makes_usual_ones_of_all_and_of_those_that_come_after_it(door: Door) -> None:
    """What a stop means is told to each connection, and silent ones could not be told."""
    door.accept()
    door.accept()
    door.loop.advance(1)
    door.silent.stop()
    door.accept()
    assert [usual.silent_s for usual in door.made] == [1, 1, 0]
    assert (door.connections, door.loop.armed) == (set(), [])

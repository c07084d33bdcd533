"""What the service manager hears, on a socket like its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.notify import ServiceManager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        yield sock


def environ(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


async def heard(manager: socket.socket) -> list[str]:
    text = await asyncio.to_thread(manager.recv, 4096)
    return text.decode().split("\n")


async def test_it_says_ready_then_stopping(manager: socket.socket) -> None:
    """READY once, STOPPING once, and nothing about a watchdog that nobody asked for."""
    told = ServiceManager(environ(manager))
    async with told.told():
        assert await heard(manager) == ["READY=1", "STATUS=serving"]
        told.stopping()
        assert (await heard(manager))[0] == "STOPPING=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


@pytest.mark.parametrize("is_named", [True, False])
async def test_it_says_in_time_that_it_is_alive(manager: socket.socket, is_named: bool) -> None:
    """A sign of life comes again and again while the loop turns."""
    more = {"WATCHDOG_USEC": "60000", "WATCHDOG_PID": str(os.getpid()) if is_named else ""}
    async with ServiceManager(environ(manager, **more)).told():
        assert (await heard(manager))[0] == "READY=1"
        for _ in range(3):
            assert await heard(manager) == ["WATCHDOG=1"]


@pytest.mark.parametrize("more", [{"WATCHDOG_USEC": "x"}, {"WATCHDOG_PID": "1"}, {}])
async def test_a_watchdog_of_somebody_else_is_none(
    manager: socket.socket, more: dict[str, str]
) -> None:
    """Only a limit in numbers, for this process, counts."""
    more = {"WATCHDOG_USEC": "1000"} | more if more else {}
    async with ServiceManager(environ(manager, **more)).told():
        assert (await heard(manager))[0] == "READY=1"
        await asyncio.sleep(0)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


async def test_without_a_manager_nothing_happens() -> None:
    """No socket is opened, and a stop says nothing."""
    told = ServiceManager({})
    async with told.told():
        told.stopping()


async def test_a_manager_that_is_gone_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server serves on."""
    async with ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).told():
        pass
    assert "does not listen" in caplog.text


async def test_a_name_without_a_file_is_understood() -> None:
    """systemd may give an abstract socket, written with an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")
        sock.settimeout(30)
        name = sock.getsockname()[1:].decode()
        async with ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).told():
            assert (await heard(sock))[0] == "READY=1"

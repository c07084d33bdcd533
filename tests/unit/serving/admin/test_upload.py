"""Receiving an upload: reading and writing overlap, and nothing writes to what was given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from serving.admin.upload import receive


class Kept:
    """A receiver that notes what it is told; ``gate`` holds each write until it is set."""

    def __init__(self, gate: threading.Event, failure: Exception | None = None) -> None:
        self.seen: list[str] = []
        self._gate = gate
        self._failure = failure

    def write(self, data: bytearray) -> None:
        assert self._gate.wait(10)
        if self._failure is not None:
            raise self._failure
        self.seen.append(data.decode())

    def commit(self) -> None:
        self.seen.append("commit")

    def suspend(self) -> None:
        self.seen.append("suspend")

    def abort(self) -> None:
        self.seen.append("abort")


def opened() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


async def pieces(*texts: str) -> AsyncIterator[bytearray]:
    for text in texts:
        yield bytearray(text, "ascii")


async def test_pieces_are_written_in_order_and_committed():
    """Every byte arrives, in order, before the commit."""
    kept = Kept(opened())
    assert await receive(kept, pieces("one", "two", "three")) == 11
    assert kept.seen == ["one", "two", "three", "commit", "abort"]


async def test_the_next_piece_is_read_while_one_is_written():
    """A write that waits for the next piece to be asked for comes to its end."""
    gate = threading.Event()

    async def second_opens() -> AsyncIterator[bytearray]:
        yield bytearray(b"one")
        gate.set()
        yield bytearray(b"two")

    kept = Kept(gate)
    assert await receive(kept, second_opens()) == 6
    assert kept.seen == ["one", "two", "commit", "abort"]


async def test_a_failed_write_ends_the_upload():
    """The error of a write is raised, and nothing is committed."""
    kept = Kept(opened(), OSError("full"))
    with pytest.raises(OSError, match="full"):
        await receive(kept, pieces("one", "two"))
    assert kept.seen == ["suspend"]


async def test_a_client_that_leaves_is_told_before_a_write_that_fails():
    """What fails the read is raised, and a write under way has ended by then."""

    async def broken() -> AsyncIterator[bytearray]:
        yield bytearray(b"one")
        raise ConnectionError("left")

    kept = Kept(opened())
    with pytest.raises(ConnectionError, match="left"):
        await receive(kept, broken())
    assert kept.seen == ["one", "suspend"]


async def test_a_cancelled_upload_waits_for_the_write_under_way():
    """Nobody else gets it while a thread still writes."""
    gate = threading.Event()
    asked = asyncio.Event()

    async def endless() -> AsyncIterator[bytearray]:
        yield bytearray(b"one")
        asked.set()
        await asyncio.Event().wait()

    kept = Kept(gate)
    task = asyncio.create_task(receive(kept, endless()))
    await asked.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(gate.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept.seen == ["one", "suspend"]

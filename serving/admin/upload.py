"""An object's bytes on their way from a request into the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol


class Receiver(Protocol):
    """What takes the bytes; each method blocks, and runs in a thread, one at a time."""

    def write(self, data: bytearray) -> None:
        """Append bytes."""
        ...

    def commit(self) -> None:
        """Keep them for good."""
        ...

    def suspend(self) -> None:
        """Leave what came to whoever goes on with it; nothing here touches it after that."""
        ...

    def abort(self) -> None:
        """Give them up, unless they were kept."""
        ...


async def receive(upload: Receiver, pieces: AsyncIterator[bytearray]) -> int:
    """Write the pieces, each while the next one arrives, and commit; return the bytes in all.

    At most two pieces are in memory. Whatever happens, and even if cancelled, this returns or
    raises only when nothing is written any more; an upload that broke off is suspended, one that
    was not committed for any other reason is aborted.
    """
    try:
        size = await _write_all(upload, pieces)
    except BaseException:
        await _to_its_end(upload.suspend)
        raise
    try:
        await _to_its_end(upload.commit)
    finally:
        await _to_its_end(upload.abort)
    return size


async def _write_all(upload: Receiver, pieces: AsyncIterator[bytearray]) -> int:
    size = 0
    writing: asyncio.Task[None] | None = None
    try:
        async for piece in pieces:
            if writing is not None:
                await asyncio.shield(writing)
            writing = asyncio.create_task(asyncio.to_thread(upload.write, piece))
            size += len(piece)
        if writing is not None:
            await asyncio.shield(writing)
    finally:
        if writing is not None:
            await asyncio.wait([writing])
            # Where the read failed first, the end of the last write is nobody's news.
            if not writing.cancelled():
                writing.exception()
    return size


async def _to_its_end(work: Callable[[], None]) -> None:
    """Run blocking work in a thread, and even if cancelled return only when it has ended.

    An upload that is given up while a thread still writes to it would write to a closed file.
    """
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

"""A tiny HTTP server in a thread, for generators that block the thread they run in."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Respond = Callable[[int], bytes | None]


def answer(status: int, *headers: str, body: bytes = b"{}") -> bytes:
    """Return an answer as bytes."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer_all(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Callable[[], bytes | None]
) -> None:
    """Answer each request of a connection with what ``reply`` returns; None closes it."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            data = reply()
            if data is None:
                return
            writer.write(data)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


@contextmanager
def http_server(respond: Respond) -> Iterator[str]:
    """Answer the n-th request with ``respond(n)``, which may block; None closes the connection."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stopping = asyncio.Event()
    ports: list[int] = []

    async def serve() -> None:
        numbers = itertools.count(1)
        tasks: set[asyncio.Task[None]] = set()

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            await answer_all(reader, writer, lambda: respond(next(numbers)))

        server = await asyncio.start_server(client, "127.0.0.1", 0, backlog=512)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stopping.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}/v2/models/m/infer"
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
        loop.close()

"""The limit: uvloop and httptools with an answer made beforehand, which computes nothing."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import cast

import httptools
import uvloop


class FixedAnswer(asyncio.Protocol):
    """Parses each request, drops its body, and writes the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where to write."""
        # uvloop's transports have the methods without the base class.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came; the parser calls back."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Answer."""
        if self._transport is not None:
            self._transport.write(self._answer)


async def serve(port: int, body: bytes) -> None:
    """Serve until ended."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    answer = head.encode() + b"\r\n\r\n" + body
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FixedAnswer(answer), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--answer", type=Path, required=True, help="file with the body to answer")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.answer.read_bytes()))


if __name__ == "__main__":
    main()

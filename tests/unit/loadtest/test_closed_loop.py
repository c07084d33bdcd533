"""The load generator counts every request and every version, and lets nothing fail unseen."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadtest.closed_loop import Tally, quantile_ms, run
from loadtest.http_connection import Connection
from tests.http_server import Respond, answer_all


def answer(status: int, version: str, body: bytes = b"{}") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nX-Ramrack-Version: {version}"
    return head.encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def http_server(respond: Respond) -> AsyncIterator[str]:
    """Answer the n-th request with ``respond(n)``; None closes the connection."""
    numbers = itertools.count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_all(reader, writer, lambda: respond(next(numbers)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/models/m:predict"


async def test_versions_are_listed_in_the_order_they_answered():
    """A swap shows as one version after the other, with none going back."""
    stop = asyncio.Event()

    def respond(n: int) -> bytes:
        if n == 20:
            stop.set()
        return answer(200, "1" if n <= 10 else "2")

    async with http_server(respond) as url:
        tally, seconds = await run(url, b"{}", 1, 30.0, stop)
    report = tally.report(seconds, rows_a_request=4)
    assert report["versions"] == ["1", "2"]
    assert report["by_version"] == {"1": 10, "2": 10}
    assert (report["sent"], report["failed"], report["went_back"]) == (20, 0, 0)


async def test_a_version_that_comes_back_is_counted():
    """An answer by a version that was replaced on the same connection is noticed."""
    stop = asyncio.Event()

    def respond(n: int) -> bytes:
        if n == 3:
            stop.set()
        return answer(200, {1: "1", 2: "2", 3: "1"}[n])

    async with http_server(respond) as url:
        tally, _ = await run(url, b"{}", 1, 30.0, stop)
    assert tally.went_back == 1


async def test_errors_and_broken_connections_are_failures():
    """A refusal and a closed connection both count, with their reason, and the load goes on."""
    stop = asyncio.Event()

    def respond(n: int) -> bytes | None:
        if n == 4:
            stop.set()
        return {1: answer(429, "1", b"full"), 2: None}.get(n, answer(200, "1"))

    async with http_server(respond) as url:
        tally, seconds = await run(url, b"{}", 1, 30.0, stop)
    assert tally.failed == 2
    assert "429: full" in tally.errors
    assert any("no whole answer came" in reason for reason in tally.errors)
    assert tally.report(seconds, 1)["sent"] == 4


async def test_a_server_that_is_gone_ends_with_the_clock():
    """Where nobody listens every attempt is a failure, and the run still ends in time."""
    async with http_server(lambda _: None) as url:
        pass
    tally, _ = await run(url, b"{}", 2, 0.1, asyncio.Event())
    assert tally.failed >= 2
    assert tally.latencies_ns == []


def test_quantiles_are_nearest_rank():
    """Known values of a known list; nothing measured is None, not zero."""
    ordered = [n * 1_000_000 for n in range(1, 101)]
    assert (quantile_ms(ordered, 0.5), quantile_ms(ordered, 0.99)) == (50.0, 99.0)
    assert quantile_ms(ordered, 1.0) == 100.0
    assert quantile_ms([], 0.5) is None


def test_kept_reasons_are_bounded():
    """Endless different errors do not fill the memory."""
    tally = Tally()
    for n in range(1000):
        tally.failure(f"reason {n}")
    assert (tally.failed, len(tally.errors)) == (1000, 5)
    json.dumps(tally.report(1.0, 1))


async def test_only_plain_http_is_measured():
    """Another scheme is refused before anything is sent."""
    with pytest.raises(ValueError, match="only http://"):
        Connection("https://127.0.0.1/")

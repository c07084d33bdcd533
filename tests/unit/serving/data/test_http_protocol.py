"""The connection: raw bytes over real sockets, against an application that says what it got."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from serving.settings import Settings
from tests.unit.serving.data.echo import EchoApp, request, said
from tests.unit.serving.data.rig import Served, serve, small, until


@pytest.mark.parametrize(
    "sent", [b"GET /v2 HT", b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"], ids=["begun", "answered"]
)
async def test_what_a_client_leaves_behind_needs_no_garbage_collection(
    echo: Served, sent: bytes
) -> None:
    """A storm of clients that come and go makes no garbage that a collection has to find."""
    connections = echo.server.server_state.connections
    gc.collect()
    gc.disable()
    try:
        client = await echo.connect()
        await client.send(sent)
        await until(lambda: any(isinstance(c, echo.server.protocol_class) for c in connections))
        kept = weakref.ref(next(iter(connections)))
        if sent.endswith(b"\r\n\r\n"):
            await client.response()
        await client.close()
        await until(lambda: kept() is None)
    finally:
        gc.enable()


async def test_no_state_is_made_of_a_client_that_only_connects(echo: Served) -> None:
    """It costs little more than the accept; with its first byte it is a connection as any other."""
    silent, speaking = await echo.connect(), await echo.connect()
    connections = echo.server.server_state.connections
    await until(lambda: len(connections) == 2)
    assert not any(isinstance(each, echo.server.protocol_class) for each in connections)

    await speaking.send(b"G")
    await until(lambda: any(isinstance(c, echo.server.protocol_class) for c in connections))
    assert len(connections) == 2
    await speaking.send(b"ET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await speaking.response()).status == 200

    await silent.close()
    await until(lambda: len(connections) == 1)


async def test_pipelined_requests_are_answered_in_order(echo: Served, app: EchoApp) -> None:
    """The second waits for the first, however ready it is."""
    connection = await echo.connect()
    await connection.send(request("/wait", b"1") + request("/fast", b"2") + request("/f", b"3"))
    await app.entered.wait()
    app.gate.set()
    assert [said(await connection.response())["body"] for _ in range(3)] == ["1", "2", "3"]


async def test_what_a_client_sends_ahead_is_not_taken_in_without_bound(
    echo: Served, app: EchoApp
) -> None:
    """While the first is being answered, reading stops, also if it listens for a disconnect."""
    connection = await echo.connect()
    await connection.send(request("/listen"))
    await app.entered.wait()
    ahead = [request(f"/{i}", b"a" * 100_000) for i in range(300)]
    connection.writer.write(b"".join(ahead))
    (protocol,) = echo.server.server_state.connections
    await until(lambda: bool(protocol.pipeline))
    # Were it to read on, it would have all of it within these passes.
    for _ in range(50):
        await asyncio.sleep(0.005)
    assert len(protocol.pipeline) < 20
    app.gate.set()
    paths = [said(await connection.response())["path"] for _ in range(301)]
    assert paths == ["/listen", *(f"/{i}" for i in range(300))]


async def test_a_head_that_does_not_come_is_a_408(app: EchoApp) -> None:
    """A started head has header_timeout_s; a connection that says nothing is just closed."""
    async with serve(app, small(Settings(), header_timeout_s=0.1)) as served:
        slow, silent = await served.connect(), await served.connect()
        await slow.send(b"GET / HTTP/1.1\r\nHost:")
        response = await slow.response()
        assert response.status == 408
        assert "header_timeout_s 0.1" in said(response)["error"]
        assert (await slow.rest(), await silent.rest()) == (b"", b"")


async def test_line_ends_alone_do_not_keep_a_connection(app: EchoApp) -> None:
    """An idle connection on which only empty lines come is closed in the time of a head."""
    async with serve(app, small(Settings(), header_timeout_s=0.1)) as served:
        connection = await served.connect()
        await connection.send(request("/"))
        await connection.response()
        await connection.send(b"\r\n")
        assert b"HTTP/1.1 200" not in await connection.rest()


async def test_an_idle_connection_is_closed_after_keep_alive(app: EchoApp) -> None:
    """It is closed without a word, and not before its last answer is out."""
    async with serve(app, small(Settings(), keep_alive_s=0.1)) as served:
        connection = await served.connect()
        await connection.send(request("/"))
        assert (await connection.response()).status == 200
        assert await connection.rest() == b""


async def test_a_peer_that_does_not_read_is_cut_off(app: EchoApp) -> None:
    """A large answer that nobody takes does not stay in memory."""
    async with serve(app, small(Settings(), write_timeout_s=0.1)) as served:
        connection = await served.connect()
        connection.writer.transport.pause_reading()
        await connection.send(request("/large"))
        state = served.server.server_state
        await until(lambda: bool(state.connections))
        await until(lambda: not state.connections)
        connection.writer.transport.abort()


async def test_expect_100_continue_is_answered_before_the_body(echo: Served) -> None:
    """A client that waits for leave gets it; an empty Expect, as load generators send, is none."""
    connection = await echo.connect()
    data = request("/", b"abc", "Expect: 100-continue")
    await connection.send(data[:-3])
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(data[-3:])
    assert said(await connection.response())["body"] == "abc"
    await connection.send(request("/", b"def", "Expect:"))
    assert said(await connection.response())["body"] == "def"


async def test_an_answer_before_the_end_of_the_body_is_readable_and_closes(echo: Served) -> None:
    """What the client still sends is read away, so that no reset destroys the answer."""
    connection = await echo.connect()
    body = b"a" * 2_000_000
    await connection.send(request("/early", body)[:-1_000_000])
    response = await connection.response()
    assert (response.status, response.headers["connection"]) == (200, "close")
    await connection.send(b"a" * 1_000_000)
    assert await connection.rest() == b""


async def test_a_client_who_leaves_is_noticed(echo: Served, app: EchoApp) -> None:
    """The application learns of it while it works, also with the next request waiting behind."""
    connection = await echo.connect()
    await connection.send(request("/watch"))
    await app.entered.wait()
    await connection.close()
    await until(lambda: bool(app.left))
    assert app.left == ["/watch"]


async def test_http_1_0_is_answered_and_closed(echo: Served) -> None:
    """The old version has no keep-alive here."""
    connection = await echo.connect()
    await connection.send(b"GET /old HTTP/1.0\r\n\r\n")
    response = await connection.response()
    assert (said(response)["path"], response.headers["connection"]) == ("/old", "close")
    assert await connection.rest() == b""

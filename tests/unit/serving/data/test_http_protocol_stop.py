"""A stop of the server, on real sockets: what was received is answered."""

from __future__ import annotations

import asyncio

import pytest

from serving.settings import Settings
from tests.unit.serving.data.echo import OFFER, EchoApp, request, said
from tests.unit.serving.data.rig import Connection, Served, serve, until


async def stopping(served: Served) -> asyncio.Task[bool]:
    """Begin a stop and let it reach the connections."""
    task = asyncio.create_task(served.server.drain(5))
    await until(lambda: served.server.should_exit)
    return task


@pytest.mark.slow
async def test_a_stop_answers_everything_that_was_received(echo: Served, app: EchoApp) -> None:
    """A request under way and those pipelined behind it are answered; only the last one closes."""
    connection = await echo.connect()
    await connection.send(request("/wait", b"1") + request("/2", b"2") + request("/3", b"3"))
    await app.entered.wait()
    stop = await stopping(echo)
    app.gate.set()
    answers = [await connection.response() for _ in range(3)]
    assert [said(answer)["body"] for answer in answers] == ["1", "2", "3"]
    assert ["connection" in answer.headers for answer in answers] == [False, False, True]
    assert await connection.rest() == b""
    assert await stop


@pytest.mark.slow
async def test_a_stop_waits_for_a_request_that_is_being_received(echo: Served) -> None:
    """Half a head, or half a body, is waited for and answered."""
    head, body, offer = await echo.connect(), await echo.connect(), await echo.connect()
    data = request("/x", b"abcdef")
    upgraded = request("/x", b"abcdef", *OFFER)
    await head.send(data[:10])
    await body.send(data[:-3])
    await offer.send(upgraded[:-3])
    await asyncio.sleep(0.05)
    stop = await stopping(echo)
    await head.send(data[10:])
    await body.send(data[-3:])
    await offer.send(upgraded[-3:])
    for connection in (head, body, offer):
        response = await connection.response()
        assert (said(response)["body"], response.headers["connection"]) == ("abcdef", "close")
        assert await connection.rest() == b""
        assert await stop


@pytest.mark.slow
async def test_a_stop_still_answers_what_comes_on_an_idle_connection(echo: Served) -> None:
    """A silent or idle connection is listened to for a moment, then closed without a word."""
    idle, silent, late = await echo.connect(), await echo.connect(), await echo.connect()
    await idle.send(request("/1"))
    await idle.response()
    stop = await stopping(echo)
    await late.send(request("/late", b"x"))
    response = await late.response()
    assert (said(response)["body"], response.headers["connection"]) == ("x", "close")
    for connection in (idle, silent, late):
        assert await connection.rest() == b""
        assert await stop


@pytest.mark.slow
async def test_a_stop_under_load_loses_no_request(app: EchoApp) -> None:
    """Clients in a closed loop see only whole answers until their connection is refused."""
    async with serve(app, Settings()) as served:
        answered = 0

        async def hammer(connection: Connection) -> None:
            nonlocal answered
            while True:
                await connection.send(request("/", b"abc"))
                response = await connection.response()
                assert response.status == 200
                answered += 1
                if response.headers.get("connection") == "close":
                    assert await connection.rest() == b""
                    return

        connections = [await served.connect() for _ in range(20)]
        tasks = [asyncio.create_task(hammer(connection)) for connection in connections]
        await until(lambda: answered >= 200)
        assert await served.server.drain(5)
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
    with pytest.raises(ConnectionRefusedError):
        await served.connect()

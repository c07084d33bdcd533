"""Offers to upgrade a connection: ignored, and the request answered."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.serving.data.echo import OFFER, request, said
from tests.unit.serving.data.rig import Served


async def test_an_h2c_offer_is_ignored_and_the_request_answered(echo: Served) -> None:
    """Java's default POST: head and body in one packet, the connection stays usable."""
    connection = await echo.connect()
    for body in (b'{"a":1}', b"second"):
        await connection.send(request("/v2/models/m/infer", body, *OFFER))
        response = await connection.response()
        assert (response.status, said(response)["body"]) == (200, body.decode())
        assert said(response)["headers"] == ["content-length", "host"]


async def test_an_h2c_offer_whose_body_comes_later_is_answered(echo: Served) -> None:
    """Head, then body in pieces, as a client with a slow source sends it."""
    connection = await echo.connect()
    data = request("/later", b"0123456789", *OFFER)
    for piece in (data[:30], data[30:-10], data[-10:-4], data[-4:]):
        await connection.send(piece)
        await asyncio.sleep(0)
    assert said(await connection.response())["body"] == "0123456789"


async def test_an_h2c_offer_among_pipelined_requests_keeps_the_order(echo: Served) -> None:
    """Offers before, between and after plain requests, all in one packet."""
    connection = await echo.connect()
    parts = [
        request("/1", b"a", *OFFER),
        request("/2", b"b"),
        request("/3", b"", *OFFER, method="GET"),
        request("/4", b"dd", *OFFER),
        request("/5", b"e"),
    ]
    await connection.send(b"".join(parts))
    answers = [said(await connection.response()) for _ in parts]
    assert [(a["path"], a["body"]) for a in answers] == [
        ("/1", "a"), ("/2", "b"), ("/3", ""), ("/4", "dd"), ("/5", "e"),
    ]  # fmt: skip


async def test_an_h2c_offer_with_a_chunked_body_is_answered(echo: Served) -> None:
    """The body's framing survives the second reading of the head."""
    connection = await echo.connect()
    head = "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
    head += "Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n\r\n"
    await connection.send(head.encode() + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert said(await connection.response())["body"] == "abcde"


@pytest.mark.parametrize("offer", ["websocket", "TLS/1.0", "h2c, foo"])
async def test_any_other_upgrade_is_ignored_too(echo: Served, offer: str) -> None:
    """Nothing is ever switched to, so the answer is the plain one."""
    connection = await echo.connect()
    await connection.send(request("/", b"x", "Connection: upgrade", f"Upgrade: {offer}"))
    assert said(await connection.response())["body"] == "x"


async def test_close_beside_an_offer_still_closes(echo: Served) -> None:
    """Of the Connection header only the offer is taken away."""
    connection = await echo.connect()
    await connection.send(request("/", b"x", "Connection: close, Upgrade", "Upgrade: h2c"))
    response = await connection.response()
    assert (said(response)["body"], response.headers["connection"]) == ("x", "close")
    assert await connection.rest() == b""

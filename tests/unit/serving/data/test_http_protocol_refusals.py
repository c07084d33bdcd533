"""What is no request, on real sockets: refused in its turn, and the connection closed."""

from __future__ import annotations

import pytest

from serving.errors import HeadersTooLarge
from serving.settings import Settings
from serving.web.server import HttpServer
from tests.unit.serving.data.echo import EchoApp, request, said
from tests.unit.serving.data.rig import Served, serve

JSON = "application/json"
BAD = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "length and chunked": (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n"
    ),
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    ),
    "same length twice": (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na"
    ),
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bare line feed": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare line feed after a header": b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
    "plus length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\na",
    "space before colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "nul in header": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "unknown coding": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, foo\r\n\r\n",
    "target that is no path": b"GET nothing HTTP/1.1\r\nHost: a\r\n\r\n",
    "target of high bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown verb": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "http2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_request_gets_a_json_400_and_the_connection_closes(
    echo: Served, name: str
) -> None:
    """Nothing of it reaches the application, and what follows is not taken for a request."""
    connection = await echo.connect()
    await connection.send(BAD[name] + request("/smuggled"))
    response = await connection.response()
    assert (response.status, response.headers["content-type"]) == (400, JSON)
    assert set(said(response)) == {"error"}
    assert response.headers["connection"] == "close"
    assert response.headers["x-request-id"]
    assert await connection.rest() == b""


async def test_connect_is_a_405(echo: Served) -> None:
    """This is no proxy."""
    connection = await echo.connect()
    await connection.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await connection.response()).status == 405


async def test_a_bad_request_after_good_ones_is_answered_in_its_turn(
    echo: Served, app: EchoApp
) -> None:
    """The answers that are due come first, then the 400, then the end."""
    connection = await echo.connect()
    await connection.send(request("/wait", b"1") + request("/2", b"2") + b"?\r\n\r\n")
    await app.entered.wait()
    app.gate.set()
    assert said(await connection.response())["body"] == "1"
    assert said(await connection.response())["body"] == "2"
    assert (await connection.response()).status == 400
    assert await connection.rest() == b""


async def test_a_body_that_breaks_its_framing_is_a_400(echo: Served, app: EchoApp) -> None:
    """The application, waiting for the body, learns that nobody is there."""
    connection = await echo.connect()
    head = b"POST /broken HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    await connection.send(head + b"3\r\nabc\r\nzz\r\n")
    assert (await connection.response()).status == 400
    assert await connection.rest() == b""
    assert app.left == ["/broken"]


async def test_a_broken_body_of_a_request_in_the_queue_takes_only_that_one(
    echo: Served, app: EchoApp
) -> None:
    """The request before it is answered; the broken one becomes the 400."""
    connection = await echo.connect()
    broken = b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    await connection.send(request("/wait", b"1") + broken)
    await app.entered.wait()
    app.gate.set()
    assert said(await connection.response())["body"] == "1"
    assert (await connection.response()).status == 400


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("part", ["one line", "many lines", "target"])
async def test_a_head_over_the_limit_is_a_431(echo: Served, part: str, is_whole: bool) -> None:
    """Whether or not its end was sent, a head of over 16 KiB is refused."""
    if part == "one line":
        data = b"GET / HTTP/1.1\r\nX: " + b"a" * 17_000
    elif part == "many lines":
        data = b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 4000 + b"Y: b"
    else:
        data = b"GET /" + b"a" * 17_000 + b" HTTP/1.1"
    connection = await echo.connect()
    await connection.send(data + (b"\r\n\r\n" if is_whole else b""))
    response = await connection.response()
    assert response.status == 431
    assert said(response)["error"] == "request head: larger than max_header_bytes 16384"
    assert await connection.rest() == b""


async def test_a_head_just_below_the_limit_is_answered(echo: Served) -> None:
    """The limit is where it says it is."""
    connection = await echo.connect()
    await connection.send(request("/", b"", "X: " + "a" * 16_000))
    assert (await connection.response()).status == 200


async def test_a_body_is_no_head(echo: Served) -> None:
    """A body of any size, in any pieces, does not count against the head's limit."""
    connection = await echo.connect()
    await connection.send(request("/", b"a" * 300_000))
    response = await connection.response()
    assert len(said(response)["body"]) == 300_000
    chunk = b"4e20\r\n" + b"b" * 20_000 + b"\r\n"
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    await connection.send(head + chunk * 10 + b"0\r\n\r\n")
    assert len(said(await connection.response())["body"]) == 200_000


async def test_an_endless_trailer_is_refused(echo: Served) -> None:
    """What follows a chunked body is bounded like a head, and is no header of the request."""
    connection = await echo.connect()
    head = b"POST /t HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    await connection.send(head + b"X-Late: 1\r\n\r\n")
    assert said(await connection.response())["headers"] == ["host", "transfer-encoding"]
    # More than one read of the socket takes in: within one, the end of the head hides the trailer.
    await connection.send(head + b"X: " + b"a" * 600_000)
    assert (await connection.response()).status == 431


async def test_refusals_are_told_to_whoever_counts_them(app: EchoApp) -> None:
    """The server hears of requests that never became one."""
    refused: list[Exception] = []
    server = HttpServer(app, Settings(), refused.append)
    async with serve(app, Settings(), server) as served:
        connection = await served.connect()
        await connection.send(b"GET /" + b"a" * 17_000)
        await connection.response()
        assert [type(error) for error in refused] == [HeadersTooLarge]

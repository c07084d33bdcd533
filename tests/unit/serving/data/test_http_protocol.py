"""The connection: raw bytes over real sockets, against an application that says what it got."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.errors import HeadersTooLarge
from serving.settings import Settings
from serving.web.server import HttpServer
from tests.unit.serving.data.rig import (
    Connection,
    Response,
    Served,
    serve,
    small,
    until,
)

JSON = "application/json"


class EchoApp:
    """Answers with what it received; paths make it wait, ignore the body, or answer largely."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        body = b""
        if path != "/early":
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self.left.append(path)
                    return
                body += message["body"]
                if not message["more_body"]:
                    break
        if path.startswith("/wait"):
            self.entered.set()
            await self.gate.wait()
        if path == "/listen":
            self.entered.set()
            while not self.gate.is_set():
                # Listens anew again and again, as an application may; each time asks to read on.
                listening = asyncio.ensure_future(receive())
                await asyncio.sleep(0.005)
                listening.cancel()
        if path == "/watch":
            self.entered.set()
            await receive()
            self.left.append(path)
            return
        names = sorted(name.decode() for name, _ in scope["headers"])
        answer = json.dumps(
            {"method": scope["method"], "path": path, "body": body.decode(), "headers": names}
        ).encode()
        if path == "/large":
            answer = b"x" * (64 * 1024 * 1024)
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def app() -> EchoApp:
    """One application for each test."""
    return EchoApp()


@pytest.fixture
async def echo(app: EchoApp) -> AsyncIterator[Served]:
    """The application on a port, with the default bounds."""
    async with serve(app, Settings()) as served:
        yield served


def request(path: str, body: bytes = b"", *more: str, method: str = "POST") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def said(response: Response) -> dict[str, Any]:
    """Return the JSON of an answer."""
    document: dict[str, Any] = json.loads(response.body)
    return document


OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")


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


# A stop


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

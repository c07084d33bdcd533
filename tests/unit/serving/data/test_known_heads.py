"""Requests whose head came before are not parsed, and nobody can tell."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from serving.data.body import BodyReader
from serving.data.call import InferCall
from serving.data.lane import InferLane, PreparedPrediction
from serving.errors import QueueFull
from serving.settings import Settings, Token
from serving.web import known_heads
from serving.web.errors import Headers
from serving.web.known_heads import KNOWN_HEAD_BYTES, KNOWN_HEADS, KnownHeads
from tests.unit.serving.data.rig import Connection, Served, serve, small, until
from tests.unit.serving.data.test_lane import DrivenPlane, begun, bodies, echoed, request

PREPARED = PreparedPrediction.__new__(PreparedPrediction)


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def driven() -> DrivenPlane:
    plane = DrivenPlane()
    plane.answers = echoed
    return plane


@pytest.fixture
async def served(driven: DrivenPlane, settings: Settings) -> AsyncIterator[Served]:
    lane = InferLane(driven, settings, BodyReader(settings))
    async with serve(None, settings, lane=lane) as served:
        served.lane = lane  # type: ignore[attr-defined]
        yield served


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the bodies of the requests that were not parsed."""
    seen: list[bytes] = []
    way = PreparedPrediction.open

    def noted(self: PreparedPrediction, connection: object, body: bytes) -> object:
        seen.append(body)
        return way(self, connection, body)  # type: ignore[arg-type]

    monkeypatch.setattr(PreparedPrediction, "open", noted)
    return seen


async def known(served: Served, data: bytes) -> Connection:
    """Return a connection on which the head of ``data`` is known, and every answer was read."""
    connection = await served.connect()
    for _ in range(2):
        await connection.send(data)
        await connection.response()
    return connection


def table(served: Served) -> dict[bytes, object]:
    found: dict[bytes, object] = served.server.protocol_class.known.by_bytes
    return found


async def test_the_third_request_with_a_head_is_not_parsed(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """Its call is that of the others, but for the body and an id of its own; on any connection."""
    lines = ("Accept-Encoding: gzip", "X-Request-Timeout-Ms: 70", "X-Routing-Key: k")
    await known(served, request(b"abc", *lines))
    connection = await served.connect()
    for body in (b"def", b"ghi"):
        await connection.send(request(body, *lines))
        assert (await connection.response()).body == body
    assert opened == [b"def", b"ghi"]
    calls = [pending.call for pending in driven.begun]
    heads = [call.head for call in calls]
    assert {(c.protocol, c.model, c.selector) for c in calls} == {("v2", "m", None)}
    said = {(h.json_length, h.timeout_ms, h.accept_encoding, h.routing_key) for h in heads}
    assert said == {(None, "70", "gzip", "k")}
    assert len({call.own_head().request_id for call in calls}) == 4


async def test_an_id_that_was_sent_is_kept(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """A client that sends the same id again gets it again."""
    connection = await known(served, request(b"abc", "X-Request-Id: r-1"))
    await connection.send(request(b"def", "X-Request-Id: r-1"))
    await connection.response()
    assert opened == [b"def"]
    assert {pending.call.head.request_id for pending in driven.begun} == {"r-1"}


async def test_a_known_head_whose_packet_is_more_or_less_is_parsed(
    served: Served, opened: list[bytes]
) -> None:
    """In pieces, with a second request behind, or behind line ends."""
    data = request(b"abc")
    connection = await known(served, data)
    (protocol,) = served.server.server_state.connections
    pieces = [data[:-1], data[-1:], data[:9], data[9:], data + data, b"\r\n" + data]
    for piece in pieces:
        # As the event loop would: in a packet of its own.
        protocol.data_received(piece)  # type: ignore[union-attr]
    assert await bodies(connection, 5) == [b"abc"] * 5
    assert opened == []
    protocol.data_received(data)  # type: ignore[union-attr]
    assert await bodies(connection, 1) == opened == [b"abc"]


async def test_heads_in_turn_are_told_apart(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """A connection on which two heads alternate, of one length even, gets what each asks for."""
    one, other = request(b"abc", "X-Routing-Key: 1"), request(b"abc", "X-Routing-Key: 2")
    longer = request(b"abcdefghijk", "X-Routing-Key: 1")
    connection = await known(served, one)
    for data in (other, longer, other, longer):
        await connection.send(data)
        await connection.response()
    for data, key in ((one, "1"), (other, "2"), (longer, "1"), (other, "2"), (one, "1")):
        await connection.send(data)
        assert (await connection.response()).body == data.rpartition(b"\r\n")[2]
        assert driven.begun[-1].call.head.routing_key == key
    assert len(opened) == 5


async def test_it_waits_its_turn(served: Served, driven: DrivenPlane, opened: list[bytes]) -> None:
    """Behind a request that is under way it is parsed and queued like any other."""
    data = request(b"abc")
    connection = await known(served, data)
    driven.answers = None
    await connection.send(data)
    first = (await begun(driven, 3))[-1]
    await connection.send(request(b"def"))
    await connection.send(request(b"ghi"))
    for number, body in enumerate((b"abc", b"def", b"ghi"), 3):
        pending = (await begun(driven, number))[-1]
        assert pending.call.body == body
        pending.answer(echoed(pending.call))
    assert await bodies(connection, 3) == [b"abc", b"def", b"ghi"]
    assert (first.call.body, opened) == (b"abc", [b"abc"])


async def test_a_client_that_left_has_its_work_dropped(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """The call is cancelled and nothing of its body counts as held."""
    connection = await known(served, request(b"abc"))
    driven.answers = None
    await connection.send(request(b"def"))
    pending = (await begun(driven, 3))[-1]
    assert served.lane.bodies.held_bytes == 3  # type: ignore[attr-defined]
    await connection.close()
    await until(lambda: pending.is_cancelled)
    assert (opened, served.lane.bodies.held_bytes) == ([b"def"], 0)  # type: ignore[attr-defined]


async def test_no_room_for_the_body_is_a_429(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """Bodies of known heads count like all others, and are given back."""
    connection = await known(served, request(b"abc"))
    reader = served.lane.bodies  # type: ignore[attr-defined]
    reader.held_bytes = reader.budget_bytes - 2
    await connection.send(request(b"def"))
    assert (await connection.response()).status == 429
    reader.held_bytes -= 1
    await connection.send(request(b"def"))
    assert (await connection.response()).status == 200
    assert [type(error) for error in driven.refusals] == [QueueFull]
    assert (opened, reader.held_bytes) == ([b"def", b"def"], reader.budget_bytes - 3)


async def test_a_plane_that_fails_is_a_500(
    served: Served, driven: DrivenPlane, opened: list[bytes]
) -> None:
    """The connection goes on."""
    connection = await known(served, request(b"abc"))

    def broken(call: InferCall) -> object:
        raise RuntimeError("secret detail")

    driven.answers = broken  # type: ignore[assignment]
    await connection.send(request(b"abc"))
    assert (await connection.response()).status == 500
    driven.answers = echoed
    await connection.send(request(b"abc"))
    assert (await connection.response()).status == 200
    assert len(opened) == 2


async def test_a_fault_after_the_answer_ends_the_connection_with_a_500(
    served: Served, driven: DrivenPlane, caplog: pytest.LogCaptureFixture
) -> None:
    """As it would have been met by the parser: logged, told without detail, closed."""
    connection = await known(served, request(b"abc"))
    begin = driven.begin

    def broken(call: InferCall, done: object) -> object:
        begin(call, done)  # type: ignore[arg-type]
        raise RuntimeError("secret detail")

    driven.begin = broken  # type: ignore[method-assign, assignment]
    await connection.send(request(b"abc"))
    assert (await connection.response()).status == 200
    rest = await connection.rest()
    assert rest.startswith(b"HTTP/1.1 500 ")
    assert b"secret detail" not in rest
    assert "unplanned error" in caplog.messages


async def test_while_stopping_the_answer_says_close(served: Served, opened: list[bytes]) -> None:
    """A connection that is told to end closes with its next answer."""
    connection = await known(served, request(b"abc"))
    (protocol,) = served.server.server_state.connections
    protocol.announce_close()  # type: ignore[union-attr]
    await connection.send(request(b"abc"))
    answer = await connection.response()
    assert (answer.headers["connection"], await connection.rest(), opened) == ("close", b"", [])


class TestGuarded:
    """With data_auth = token."""

    @pytest.fixture
    def settings(self) -> Settings:
        token = Token("app", hashlib.sha256(b"secret").hexdigest(), ("infer",))
        return small(Settings(), data_auth="token", tokens=(token,))

    async def test_who_has_no_token_is_refused_each_time(
        self, served: Served, driven: DrivenPlane, opened: list[bytes]
    ) -> None:
        """The door is asked about a known head, too."""
        connection = await served.connect()
        for lines, status in (((), 401), (("Authorization: Bearer secret",), 200)):
            for _ in range(3):
                await connection.send(request(b"abc", *lines))
                assert (await connection.response()).status == status
        assert (len(opened), len(driven.refusals), len(driven.begun)) == (2, 3, 3)


class TestLogged:
    """With access_log = all."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), access_log="all")

    async def test_each_request_is_logged(
        self, served: Served, opened: list[bytes], caplog: pytest.LogCaptureFixture
    ) -> None:
        """One line each, with the path and an id of its own."""
        caplog.set_level("INFO", "serving.web.access_log")
        connection = await known(served, request(b"abc", path="/v2/models/%6d/infer?x"))
        await connection.send(request(b"abc", path="/v2/models/%6d/infer?x"))
        await connection.response()
        lines = [vars(record) for record in caplog.records]
        said = [(line["path"], line["status"], line["client"]) for line in lines]
        assert said == [("/v2/models/m/infer", 200, "127.0.0.1")] * 3
        assert (len({line["request_id"] for line in lines}), len(opened)) == (3, 1)


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: close",),
        ("Expect: 100-continue",),
        ("Content-Encoding: identity",),
        ("Content-Type: text/html",),
        ("X: " + "a" * KNOWN_HEAD_BYTES,),
    ],
)
async def test_what_needs_more_care_is_parsed_each_time(
    served: Served, opened: list[bytes], lines: tuple[str, ...]
) -> None:
    """What ends the connection, waits, is unpacked, is refused, or is too large to be kept."""
    for _ in range(4):
        connection = await served.connect()
        await connection.send(request(b"abc", *lines))
        await connection.response()
    assert (opened, table(served)) == ([], {})


HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
HEADERS: Headers = [(b"host", b"h"), (b"content-length", b"3")]


@pytest.mark.parametrize(
    ("head", "body_bytes", "headers"),
    [
        (HEAD, 4, HEADERS),
        (HEAD.replace(b": 3", b": 03"), 3, [HEADERS[0], (b"content-length", b"03")]),
        (HEAD, 3, [HEADERS[0], (b"transfer-encoding", b"chunked")]),
        (HEAD + b"\r\n", 3, HEADERS),
        (b"\r\n" + HEAD, 3, HEADERS),
        (HEAD.replace(b"h\r\n", b"h\r\n h\r\n"), 3, HEADERS),
        (b"POST / HTTP/1.1\nContent-Length: 3\n\nA: b\r\n\r\n", 3, HEADERS[1:]),
        (HEAD.replace(b"h\r", b"h" * KNOWN_HEAD_BYTES + b"\r"), 3, HEADERS),
        (HEAD, 0, HEADERS[:1]),
    ],
)
def test_a_doubtful_end_is_not_learned(head: bytes, body_bytes: int, headers: Headers) -> None:
    """Where bytes and headers leave a doubt where the head or its body ends, it stays unknown."""
    heads = KnownHeads()
    heads.learn(head, body_bytes, b"/", headers, PREPARED)
    assert heads.by_bytes == {}
    heads.learn(HEAD, 3, b"/", HEADERS, PREPARED)
    assert list(heads.by_bytes) == [HEAD]


def test_what_is_kept_is_bounded() -> None:
    """Strangers who send ever new heads, once or twice, fill no memory."""
    heads = KnownHeads()
    for number in range(5 * KNOWN_HEADS):
        head = HEAD.replace(b": h", b": %d" % number)
        assert not heads.is_repeated(head)
        assert heads.is_repeated(head)
        heads.learn(head, 3, b"/", HEADERS, PREPARED)
        assert head in heads.by_bytes
        assert max(len(heads.by_bytes), len(heads._seen)) <= KNOWN_HEADS
    assert known_heads.KNOWN_HEADS * KNOWN_HEAD_BYTES <= 512 * 1024

"""The fast lane on real sockets, over a data plane that the test drives."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from serving.data import paths
from serving.data.body import BodyReader
from serving.data.call import Answer, InferCall, RequestHead
from serving.data.lane import InferLane
from serving.errors import Cancelled, status_of
from serving.settings import Settings
from tests.unit.serving.data.rig import Connection, Response, Served, serve, small, until

INFER = "/v2/models/m/infer"


class Pending:
    """A call that the test answers, or that its client leaves."""

    def __init__(self, call: InferCall, done: Callable[[Answer], None]) -> None:
        self.call = call
        self.answer = done
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class DrivenPlane:
    """Begins everything; answers at once where ``answers`` says how, else when the test does."""

    def __init__(self) -> None:
        self.begun: list[Pending] = []
        self.refusals: list[Exception] = []
        self.answers: Callable[[InferCall], Answer] | None = None

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        pending = Pending(call, done)
        self.begun.append(pending)
        if self.answers is not None:
            done(self.answers(call))
        return pending

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        self.refusals.append(error)
        body = json.dumps({"error": str(error)}).encode()
        return Answer(status_of(error), [], body)


def echoed(call: InferCall) -> Answer:
    """Return an answer that says which call it is of."""
    return Answer(200, [], call.body)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path, late where it says so."""
    if scope["path"] == "/late":
        for _ in range(20):
            await asyncio.sleep(0)
    body = scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def plane() -> DrivenPlane:  # type: ignore[override]
    return DrivenPlane()


@pytest.fixture
async def served(plane: DrivenPlane, settings: Settings) -> AsyncIterator[Served]:
    lane = InferLane(plane, settings, BodyReader(settings))
    async with serve(application, settings, lane=lane) as served:
        served.lane = lane  # type: ignore[attr-defined]
        yield served


def held_bytes(served: Served) -> int:
    return served.lane.bodies.held_bytes  # type: ignore[attr-defined,no-any-return]


def request(body: bytes = b"", *more: str, path: str = INFER, verb: str = "POST") -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def begun(plane: DrivenPlane, count: int) -> list[Pending]:
    """Wait until so many calls reached the plane."""
    await until(lambda: len(plane.begun) >= count)
    return plane.begun


async def bodies(connection: Connection, count: int) -> list[bytes]:
    return [(await connection.response()).body for _ in range(count)]


# Which requests, and what of them


async def test_a_call_says_what_was_asked(served: Served, plane: DrivenPlane) -> None:
    """Protocol, model, version and alias, the head's fields, and the body as it came."""
    connection = await served.connect()
    plane.answers = echoed
    asked = [
        (INFER, ("v2", "m", None)),
        ("/v2/models/m/versions/7/infer?x", ("v2", "m", 7)),
        ("/v2/models/m/versions/up/infer", ("v2", "m", "up")),
        ("/v1/models/m:predict", ("v1", "m", None)),
        ("/v1/models/m/versions/7:predict", ("v1", "m", 7)),
        ("/v1/models/%6d/labels/up:predict", ("v1", "m", "up")),
    ]
    for path, _ in asked:
        await connection.send(
            request(b"abc", "X-Request-Id: r-1", "Accept-Encoding: gzip", path=path)
        )
        assert (await connection.response()).body == b"abc"
    calls = [pending.call for pending in plane.begun]
    assert [(c.protocol, c.model, c.selector) for c in calls] == [names for _, names in asked]
    assert {(c.head.request_id, c.head.accept_encoding) for c in calls} == {("r-1", "gzip")}


@pytest.mark.parametrize("verb", ["GET", "HEAD", "PUT", "OPTIONS"])
async def test_other_verbs_and_paths_go_to_the_application(
    served: Served, plane: DrivenPlane, verb: str
) -> None:
    """The lane takes POST on the paths of predictions only."""
    connection = await served.connect()
    await connection.send(request(verb=verb, path="/v2") + request(path="/v2"))
    assert (await connection.response()).status == 200
    assert plane.begun == []


async def test_strangers_targets_are_not_remembered_without_bound() -> None:
    """The memory for targets has a size, and long ones are never kept in it."""
    for number in range(3 * paths.KNOWN_TARGETS):
        assert paths.prediction_of(b"/v2/models/m%d/infer" % number)
    before = paths._known.cache_info()
    assert before.currsize <= paths.KNOWN_TARGETS
    assert paths.prediction_of(b"/v2/models/" + b"m" * 10_000 + b"/infer")
    assert paths._known.cache_info() == before


@pytest.mark.parametrize("path", [INFER, "/v2"])
async def test_http_1_1_without_a_host_is_a_400(
    served: Served, plane: DrivenPlane, path: str
) -> None:
    """RFC 9112, section 3.2, on both ways; HTTP/1.0 needs none."""
    plane.answers = echoed
    without = request(b"abc", path=path).replace(b"Host: h\r\n", b"")
    connection, old = await served.connect(), await served.connect()
    await connection.send(without)
    response = await connection.response()
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert "Host is missing" in json.loads(response.body)["error"]
    await old.send(without.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await old.response()).status == 200
    assert await old.rest() == b""


async def test_a_plane_that_fails_is_a_500(served: Served, plane: DrivenPlane) -> None:
    """A fault in the data plane answers its request and leaves the connection usable."""

    def broken(call: InferCall) -> Answer:
        raise RuntimeError("secret detail")

    plane.answers = broken
    connection = await served.connect()
    for _ in range(2):
        await connection.send(request(b"abc"))
        assert (await connection.response()).status == 500


# Order


async def test_answers_come_in_order_whichever_way_each_request_takes(
    served: Served, plane: DrivenPlane
) -> None:
    """While an earlier answer is due, the next request does not even begin."""
    connection = await served.connect()
    ways = [request(b"1"), request(path="/late"), request(b"2"), request(b"3"), request(path="/x")]
    await connection.send(b"".join(ways))
    await begun(plane, 1)
    await connection.send(request(b"4"))
    for number, body in enumerate([b"1", b"2", b"3", b"4"], 1):
        pending = (await begun(plane, number))[-1]
        assert (len(plane.begun), pending.call.body) == (number, body)
        pending.answer(echoed(pending.call))
    assert await bodies(connection, 6) == [b"1", b"/late", b"2", b"3", b"/x", b"4"]


async def test_a_packet_of_thousands_is_answered_whole(served: Served, plane: DrivenPlane) -> None:
    """Answers that are ready at once follow each other without one deepening the stack."""
    plane.answers = echoed
    connection = await served.connect()
    connection.writer.write(b"".join(request(b"%d" % number) for number in range(5000)))
    assert await bodies(connection, 5000) == [b"%d" % number for number in range(5000)]


async def test_queued_requests_that_are_ready_at_once_do_not_deepen_the_stack(
    served: Served, plane: DrivenPlane
) -> None:
    """The same when all of them waited behind one."""
    connection = await served.connect()
    connection.writer.write(b"".join(request(b"%d" % number) for number in range(2000)))
    (first,) = await begun(plane, 1)
    plane.answers = echoed
    first.answer(echoed(first.call))
    assert await bodies(connection, 2000) == [b"%d" % number for number in range(2000)]


async def test_answers_of_one_packet_go_out_in_one_write(
    served: Served, plane: DrivenPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small answers that are ready while their packet is parsed are joined."""
    plane.answers = echoed
    connection = await served.connect()
    await until(lambda: bool(served.server.server_state.connections))
    (protocol,) = served.server.server_state.connections
    writes: list[bytes] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            transport.write(data)

    transport = protocol.transport
    monkeypatch.setattr(protocol, "transport", Recorder())
    await connection.send(request(b"1") + request(b"2") + request(b"3"))
    assert await bodies(connection, 3) == [b"1", b"2", b"3"]
    assert len(writes) == 1


# Bodies


async def test_leave_is_given_to_send_a_body(served: Served, plane: DrivenPlane) -> None:
    """Expect: 100-continue is answered once the head is found good, and not when it is refused."""
    plane.answers = echoed
    connection, refused = await served.connect(), await served.connect()
    data = request(b"abc", "Expect: 100-continue")
    await connection.send(data[:-3])
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(data[-3:])
    assert (await connection.response()).body == b"abc"
    await refused.send(request(b"abc", "Expect: 100-continue", "Content-Type: a/b")[:-3])
    response = await refused.response()
    assert (response.status, response.headers["connection"]) == (415, "close")


async def test_a_body_that_is_announced_too_large_is_never_read(
    served: Served, plane: DrivenPlane, settings: Settings
) -> None:
    """The refusal comes before the first byte of the body, and ends the connection."""
    connection = await served.connect()
    size = settings.max_body_bytes + 1
    await connection.send(request().replace(b"Length: 0", b"Length: %d" % size))
    response = await connection.response()
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert (plane.begun, held_bytes(served)) == ([], 0)


async def test_a_heavy_compressed_body_is_decoded_and_counted(
    served: Served, plane: DrivenPlane
) -> None:
    """Decoded in a thread; what follows on the connection waits; all is held until the answer."""
    text = bytes(i * i % 251 for i in range(200_000))
    packed = gzip.compress(text, 1)
    connection = await served.connect()
    await connection.send(request(packed, "Content-Encoding: gzip") + request(b"next"))
    (first,) = await begun(plane, 1)
    assert (first.call.body == text, held_bytes(served)) == (True, len(text))
    first.answer(Answer(200, [], b"done"))
    _, second = await begun(plane, 2)
    second.answer(echoed(second.call))
    assert await bodies(connection, 2) == [b"done", b"next"]
    assert held_bytes(served) == 0


class TestShort:
    """Deadlines of a tenth of a second."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(
            Settings(), header_timeout_s=0.1, body_timeout_s=0.1, write_timeout_s=0.1,
            keep_alive_s=0.1,
        )  # fmt: skip

    async def test_a_body_that_trickles_in_is_a_408(
        self, served: Served, plane: DrivenPlane
    ) -> None:
        """The deadline is of the whole body: a byte now and then does not move it."""
        connection = await served.connect()
        await connection.send(request(b"a" * 1000)[:-999])

        async def trickle() -> None:
            while True:
                await connection.send(b"a")
                await asyncio.sleep(0.01)

        drip = asyncio.create_task(trickle())
        response = await connection.response()
        drip.cancel()
        assert response.status == 408
        assert "body_timeout_s 0.1" in json.loads(response.body)["error"]
        assert (response.headers["connection"], held_bytes(served)) == ("close", 0)

    async def test_a_request_in_time_outlives_the_deadlines_of_its_parts(
        self, served: Served, plane: DrivenPlane
    ) -> None:
        """Once it is complete only the plane decides how long it takes; then idleness counts."""
        connection = await served.connect()
        data = request(b"abc")
        await connection.send(data[:-1])
        await connection.send(data[-1:])
        (pending,) = await begun(plane, 1)
        await asyncio.sleep(0.25)
        pending.answer(echoed(pending.call))
        assert (await connection.response()).body == b"abc"
        assert await connection.rest() == b""

    async def test_who_does_not_read_is_not_served_and_then_cut_off(
        self, served: Served, plane: DrivenPlane
    ) -> None:
        """Answers of a megabyte each: few of two hundred requests are begun, and none is held."""
        plane.answers = lambda call: Answer(200, [], b"x" * 1_000_000)
        connection = await served.connect()
        connection.writer.transport.pause_reading()
        await connection.send(request() * 200)
        state = served.server.server_state
        await until(lambda: bool(plane.begun))
        await until(lambda: not state.connections)
        assert len(plane.begun) < 40
        connection.writer.transport.abort()


async def test_who_reads_late_gets_everything(served: Served, plane: DrivenPlane) -> None:
    """Back-pressure holds requests, and lets them go on when the client reads."""
    plane.answers = lambda call: Answer(200, [], call.body * 200_000)
    connection = await served.connect()
    connection.writer.transport.pause_reading()
    await connection.send(b"".join(request(b"%d" % (number % 10)) for number in range(50)))
    await until(lambda: bool(plane.begun))
    connection.writer.transport.resume_reading()
    answers = await bodies(connection, 50)
    assert [(body[:1], len(body)) for body in answers] == [
        (b"%d" % (number % 10), 200_000) for number in range(50)
    ]


class TestAccessLog:
    """With access_log = all."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), access_log="all")

    async def test_every_prediction_is_logged_once(
        self, served: Served, plane: DrivenPlane, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Answered, refused and left: the line is the one that the application would write."""
        caplog.set_level("INFO", "serving.web.access_log")
        plane.answers = echoed
        connection, gone = await served.connect(), await served.connect()
        await connection.send(request(b"abc", path="/v2/models/%6d/infer?x"))
        await connection.send(request(b"abc", "X-Request-Id: r-2", "Content-Type: a/b"))
        assert [(await connection.response()).status for _ in range(2)] == [200, 415]
        await gone.send(request(b"abc", "X-Request-Id: r-3")[:-1])
        await until(lambda: len(served.server.server_state.connections) == 2)
        await gone.close()
        await until(lambda: len(caplog.records) == 3)
        lines = [vars(record) for record in caplog.records]
        assert [(line["path"], line["status"]) for line in lines] == [
            ("/v2/models/m/infer", 200), (INFER, 415), (INFER, 499),
        ]  # fmt: skip
        assert {(line["method"], line["client"]) for line in lines} == {("POST", "127.0.0.1")}
        assert [line["request_id"] for line in lines[1:]] == ["r-2", "r-3"]
        assert all(line["duration_ms"] >= 0 for line in lines)


# Clients that leave


async def test_a_client_that_ended_its_side_gets_its_answers(
    served: Served, plane: DrivenPlane
) -> None:
    """Half-closed is not gone: all that was asked is answered, the last one with close."""
    connection = await served.connect()
    await connection.send(request(b"1") + request(path="/late") + request(b"2"))
    connection.writer.write_eof()
    for number in (1, 2):
        pending = (await begun(plane, number))[-1]
        # Longer than an answer is held back before its first bytes are sent ahead.
        await asyncio.sleep(0.03)
        pending.answer(echoed(pending.call))
    answers = [await connection.response() for _ in range(3)]
    assert [answer.body for answer in answers] == [b"1", b"/late", b"2"]
    assert ["connection" in answer.headers for answer in answers] == [False, False, True]
    assert await connection.rest() == b""


async def test_half_a_request_of_a_client_that_ended_its_side_is_dropped(
    served: Served, plane: DrivenPlane
) -> None:
    """What came before it is answered; it cannot become whole any more."""
    alone, behind = await served.connect(), await served.connect()
    await alone.send(request(b"abc")[:-1])
    await behind.send(request(b"1") + request(b"abc")[:-1])
    (first,) = await begun(plane, 1)
    alone.writer.write_eof()
    behind.writer.write_eof()
    assert await alone.rest() == b""
    assert [type(error) for error in plane.refusals] == [Cancelled]
    first.answer(echoed(first.call))
    assert (await behind.response()).body == b"1"
    assert await behind.rest() == b""
    assert held_bytes(served) == 0


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_left_has_its_work_dropped(
    served: Served, plane: DrivenPlane, is_reset: bool, has_more: bool
) -> None:
    """A closed socket is told from a half-closed one, also while nothing is read any more."""
    connection = await served.connect()
    await connection.send(request(b"abc") + (request(b"behind") if has_more else b""))
    (pending,) = await begun(plane, 1)
    if is_reset:
        sock = connection.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await connection.close()
    await until(lambda: pending.is_cancelled)
    await until(lambda: not served.server.server_state.connections)
    assert (len(plane.begun), held_bytes(served)) == (1, 0)


# A stop


@pytest.mark.slow
async def test_a_stop_answers_what_was_received(served: Served, plane: DrivenPlane) -> None:
    """Under way, behind it, half received, and in one packet after the stop began."""
    busy, half, late = [await served.connect() for _ in range(3)]
    await busy.send(request(b"1") + request(b"2"))
    await half.send(request(b"abc")[:-1])
    (first,) = await begun(plane, 1)
    stop = asyncio.create_task(served.server.drain(5))
    await until(lambda: served.server.should_exit)
    plane.answers = echoed
    first.answer(echoed(first.call))
    await half.send(b"c")
    await late.send(request(b"3") + request(b"4"))

    async def ends(connection: Connection, count: int) -> list[tuple[bytes, bool]]:
        answers: list[Response] = [await connection.response() for _ in range(count)]
        assert await connection.rest() == b""
        return [(answer.body, "connection" in answer.headers) for answer in answers]

    assert await ends(busy, 2) == [(b"1", False), (b"2", True)]
    assert await ends(half, 1) == [(b"abc", True)]
    assert await ends(late, 2) == [(b"3", False), (b"4", True)]
    for connection in (busy, half, late):
        await connection.close()
    assert await stop

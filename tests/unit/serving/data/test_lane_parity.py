"""The fast lane and the application's routes say the same, byte for byte, and count the same."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from registry.lifecycle import State
from serving.data.batcher import BatchLimits
from serving.data.call import RequestHead
from serving.data.lane import Prediction, PreparedPrediction
from serving.metrics import layout
from serving.metrics.page import MetricsMemory
from serving.metrics.reading import by_code
from serving.settings import Settings, Token
from serving.web.exchange import Connection
from serving.web.server import HttpServer
from tests.unit.serving.data.rig import Plane, Served, serve, small
from tests.unit.serving.data.wire_corpus import (
    BODIES,
    MAX_BODY_BYTES,
    PATHS,
    TOKEN,
    Case,
    corpus,
    generated,
    request,
)

# A request that no application answers otherwise: where its answer is seen, the connection lived.
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nX-Request-Id: the-last\r\n\r\n"
AT_ONCE = 24


@contextmanager
def planes(settings: Settings, count: int) -> Iterator[list[Plane]]:
    """Give planes that are alike, each with numbers of its own."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            memory = stack.enter_context(MetricsMemory.create(1))
            executor = stack.enter_context(ThreadPoolExecutor(2))
            plane = Plane(settings, executor, memory.writer(0), memory)
            plane.aliases["fraud"] = {"stable": 3}
            # Room for all at once: a full queue would depend on who came first.
            plane.add(limits=BatchLimits(100_000, 32, 60.0))
            plane.add_known("sleeping", 1, State.UNLOADED, "nobody asked for it")
            made.append(plane)
        yield made


def server_of(plane: Plane, *, has_lane: bool) -> HttpServer:
    """Return a server as a worker has it, or one whose application answers everything."""

    def refused(error: Exception) -> None:
        plane.data_plane.refused(error, RequestHead(request_id=""))

    return HttpServer(plane.app, plane.settings, refused, lane=plane.lane if has_lane else None)


async def said(served: Served, case: Case) -> bytes:
    """Return all that the server says to a case, and whether it closed the connection."""
    connection = await served.connect()
    try:
        data = case.data if case.is_cut else case.data + LAST
        size = case.piece_bytes or len(data) or 1
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await asyncio.sleep(0)
        if case.is_cut:
            connection.writer.write_eof()
        heard = b""
        async with asyncio.timeout(30):
            while b"x-request-id: the-last\r\n" not in heard:
                piece = await connection.reader.read(65536)
                if not piece:
                    return heard + b"<closed>"
                heard += piece
        return heard
    except ConnectionError:
        return heard + b"<reset>"
    finally:
        await connection.close()


async def said_again(served: Served, case: Case) -> bytes:
    """Return all that the server says to a case that is sent again after each answer."""
    heard = b""
    for _ in range(2):
        connection = await served.connect()
        try:
            async with asyncio.timeout(30):
                for _ in range(3):
                    await connection.send(case.data)
                    piece = await connection.reader.read(65536)
                    if not piece:
                        break
                    heard += piece
                await connection.send(LAST)
                while b"x-request-id: the-last\r\n" not in heard:
                    if not (piece := await connection.reader.read(65536)):
                        heard += b"<closed>"
                        break
                    heard += piece
        except ConnectionError:
            heard += b"<reset>"
        finally:
            await connection.close()
        heard = heard.replace(b"x-request-id: the-last", b"x-request-id: a-last")
    return heard


def plain(heard: bytes) -> bytes:
    """Take out what differs from run to run: the date, and ids that the server made up."""
    heard = re.sub(rb"\ndate: [^\r]+", b"\ndate: -", heard)
    heard = heard.partition(b"x-request-id: the-last")[0]
    return re.sub(rb"\nx-request-id: [0-9a-f]{32}\r", b"\nx-request-id: -\r", heard)


def numbers(plane: Plane) -> dict[str, object]:
    """Return what was counted that does not depend on time or on who shared a run."""
    (cells,) = plane.memory.regions()
    statistics = plane.memory.statistics("fraud", 3)
    inference = statistics["inference_stats"]
    return {
        "unknown": by_code(cells, layout.UNKNOWN_BY_CODE),
        "rejected": list(cells[layout.REJECTED : layout.REJECTED + len(layout.REASONS)]),
        "rows": statistics["inference_count"],
        "success": inference["success"]["count"],
        "fail": inference["fail"]["count"],
        "in flight": plane.data_plane.in_flight,
        "handles": plane.serving_map.handles("fraud", 3),
        "bodies": plane.lane.bodies.held_bytes,
    }


async def compared(
    settings: Settings,
    cases: list[Case],
    said: Callable[[Served, Case], Awaitable[bytes]] = said,
) -> int:
    """Send every case to both fronts and return how many got a 200 by both."""
    answered = 0
    with planes(settings, 2) as (by_lane, by_app):
        gate = asyncio.Semaphore(AT_ONCE)
        lane_server = server_of(by_lane, has_lane=True)
        app_server = server_of(by_app, has_lane=False)
        async with (
            serve(None, settings, lane_server) as lane,
            serve(None, settings, app_server) as app,
        ):

            async def both(case: Case) -> tuple[bytes, bytes]:
                async with gate:
                    heard = await asyncio.gather(said(lane, case), said(app, case))
                return plain(heard[0]), plain(heard[1])

            results = await asyncio.gather(*map(both, cases))
            for case, (one, other) in zip(cases, results, strict=True):
                assert one == other, f"{case.name}: {case.data[:2000]!r}"
                answered += b"x-ramrack-version: 3" in one and b" 200 OK" in one
        assert numbers(by_lane) == numbers(by_app)
    return answered


@pytest.fixture
def settings() -> Settings:
    """Small bounds, so that bodies over them stay small, and what never ends, ends soon."""
    return small(
        Settings(), max_body_bytes=MAX_BODY_BYTES, header_timeout_s=1.5, body_timeout_s=1.5
    )


@pytest.fixture
def closed(settings: Settings) -> Settings:
    """The same, with tokens."""
    tokens = (
        Token("app", hashlib.sha256(TOKEN.encode()).hexdigest(), ("infer",)),
        Token("ci", hashlib.sha256(b"secret-ci").hexdigest(), ("read",)),
    )
    return small(settings, data_auth="token", tokens=tokens)


@pytest.mark.slow
async def test_every_oddity_alone_is_answered_alike(settings: Settings) -> None:
    """Status, headers, body and fate of the connection are those of the application's routes."""
    assert await compared(settings, corpus()) > 80


@pytest.mark.slow
async def test_a_model_for_mlflow_answers_alike(settings: Settings) -> None:
    """The path that names no model goes to the model of the setting, in JSON and in CSV."""
    named = small(settings, invocations_model="fraud")
    cases = [case for case in corpus() if PATHS[10] in case.name]
    assert await compared(named, cases) >= 8


@pytest.mark.slow
async def test_oddities_mixed_are_answered_alike(settings: Settings) -> None:
    """Hundreds of requests by a fixed seed, alone and behind others."""
    assert await compared(settings, generated(seed=11, count=500)) > 100


@pytest.mark.slow
async def test_what_comes_again_is_answered_alike(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every head comes six times, so that those that can be known are not parsed in the end."""
    opened = 0
    way = PreparedPrediction.open

    def counted(self: PreparedPrediction, connection: Connection, body: bytes) -> Prediction:
        nonlocal opened
        opened += 1
        return way(self, connection, body)

    monkeypatch.setattr(PreparedPrediction, "open", counted)
    cases = [case for case in corpus() + generated(seed=14, count=150) if not case.is_cut]
    whole = [replace(case, piece_bytes=0) for case in cases]
    assert await compared(settings, whole, said_again) > 80
    assert opened > 300


async def test_good_requests_in_pieces_are_answered_alike(settings: Settings) -> None:
    """Heads and bodies that arrive byte by byte or in halves are what they are in one packet."""
    bodies = {PATHS[0]: BODIES["v2"], PATHS[4]: BODIES["v1"]}
    cases = [
        Case(f"{path} {framing} {size}", request(path, body, framing=framing), piece_bytes=size)
        for path, body in bodies.items()
        for framing in ("length", "chunked", "many chunks", "extension")
        for size in (1, 50, 100)
    ]
    assert await compared(settings, cases) == len(cases)


@pytest.mark.slow
async def test_a_guarded_plane_refuses_alike(closed: Settings) -> None:
    """Who has no token, a bad one or two is refused by both, before anything else is looked at."""
    # None behind another: one that breaks off there is not looked at by the application, which
    # begins with the first after the whole packet was parsed.
    bare = generated(seed=12, count=150, behind=0)
    line = f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    tokened = [
        replace(case, data=case.data.replace(b"\r\n", line, 1))
        for case in generated(seed=13, count=150, behind=0)
    ]
    assert await compared(closed, bare) < 20
    assert await compared(closed, tokened) > 25

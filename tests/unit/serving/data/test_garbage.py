"""A request that is over leaves nothing for the garbage collector: body and arrays go with it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.metrics.page import MetricsMemory
from serving.settings import Settings
from tests.unit.serving.data.rig import Plane, serve
from tests.unit.serving.data.wire_corpus import BODIES, PATHS, V1, request


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Keep what the collector finds, for the time of the test."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.unfreeze()
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(PATHS[0], BODIES["v2"]), 200),
        (request(PATHS[0], BODIES["v2"], "X-Request-Id: r", framing="chunked"), 200),
        (request(PATHS[4], V1), 200),
        (request(PATHS[0], BODIES["no json"]), 400),
        (request(PATHS[0], BODIES["v2"], "Content-Type: a/b"), 415),
        (request("/v2/models/none/infer", BODIES["v2"]), 404),
    ],
    ids=["v2", "parsed", "v1", "no json", "type", "no model"],
)
async def test_requests_leave_no_cycles(garbage: list[object], data: bytes, status: int) -> None:
    """Answered or refused, parsed or known: at 20,000 a second cycles cost more than the parser."""
    with MetricsMemory.create(1) as memory, ThreadPoolExecutor(1) as executor:
        plane = Plane(Settings(), executor, memory.writer(0), memory)
        plane.add()
        async with serve(plane.app, plane.settings, lane=plane.lane) as served:
            connection = await served.connect()
            # What was there before is not a request's: the collector passes it over.
            gc.freeze()
            garbage.clear()
            for _ in range(10):
                await connection.send(data)
                assert (await connection.response()).status == status
            gc.collect()
            found = {f"{type(each).__module__}.{type(each).__qualname__}" for each in garbage}
    assert {name for name in found if name.startswith("serving.")} == set()

"""The data plane without HTTP: what it takes, counts, and gives back in any case."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from models.signature import Signature, TensorSpec
from serving.data.body import BodyReader
from serving.data.data_plane import RequestHead
from serving.errors import PayloadTooLarge, UnsupportedMedia
from serving.metrics import layout
from serving.metrics.reading import find_block
from serving.settings import Settings
from tests.fakes import FakeServable
from tests.unit.serving.data.rig import Plane, small, until

BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
HEAD = RequestHead("id-1")


def rejected(plane: Plane) -> dict[str, int]:
    """Return the rejections that were counted, by reason."""
    cells = plane.memory.region(0)
    return {
        reason: cells[layout.REJECTED + cell]
        for reason, cell in layout.REASON_CELL.items()
        if cells[layout.REJECTED + cell]
    }


def test_a_head_keeps_what_matters_and_joins_what_stands_twice() -> None:
    """A header sent twice is no number any more, so it is refused where it is read."""
    head = RequestHead.of(
        [
            (b"x-request-id", b"r"),
            (b"accept-encoding", b"gzip"),
            (b"inference-header-content-length", b"5"),
            (b"inference-header-content-length", b"6"),
            (b"x-request-timeout-ms", b" 7 "),
        ]
    )
    assert head == RequestHead("r", json_length="5,6", timeout_ms="7", accept_encoding="gzip")


async def test_a_cancelled_request_leaves_nothing_behind(plane: Plane) -> None:
    """Permit, handle, queue and gauges are given back, and it is counted as such."""
    servable = FakeServable(hold=True)
    version = plane.add(servable=servable)
    infer = plane.data_plane.infer_v2
    tasks = [asyncio.create_task(infer("fraud", None, HEAD, BODY))]
    await asyncio.to_thread(servable.entered.wait, 10)
    tasks += [asyncio.create_task(infer("fraud", None, HEAD, BODY)) for _ in range(2)]
    await until(lambda: version.counters.queue_depth == 2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert plane.data_plane.in_flight == 0
    assert plane.serving_map.handles("fraud", 3) == 0
    assert (version.counters.in_flight, version.counters.queue_depth) == (0, 0)
    assert rejected(plane) == {"cancelled": 3}
    servable.release()


async def test_unknown_names_share_one_count(plane: Plane) -> None:
    """E05: whatever name a scanner asks for, it makes no counters of its own."""
    for index in range(50):
        answer = await plane.data_plane.infer_v2(f"none-{index}", None, HEAD, BODY)
        assert answer.status == 404
    cells = plane.memory.region(0)
    assert cells[layout.UNKNOWN_BY_CODE + layout.CODE_CELL[404]] == 50
    assert plane.region.versions() == ()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PayloadTooLarge("large"), {"body_too_large": 1}),
        (UnsupportedMedia("foreign"), {"unsupported_media": 1}),
    ],
)
async def test_refusals_are_counted_by_reason(
    plane: Plane, error: Exception, reason: dict[str, int]
) -> None:
    """What was turned away before it reached a version shows in the metrics."""
    assert (
        plane.data_plane.refused(error, HEAD).body
        == json.dumps({"error": str(error)}, separators=(",", ":")).encode()
    )
    assert rejected(plane) == reason


async def test_v1_counts_columns_that_the_model_does_not_know(plane: Plane) -> None:
    """They are ignored, so that clients can send them before the version that needs them."""
    signature = Signature(
        (TensorSpec("x", "FP32", (-1, 2), columns=("a", "b")),), (TensorSpec("y", "FP32", (-1, 2)),)
    )
    version = plane.add(signature=signature)
    body = b'{"instances":[{"a":1,"b":2,"later":3}]}'
    answer = await plane.data_plane.predict_v1("fraud", None, HEAD, body)
    assert (answer.status, json.loads(answer.body)) == (200, {"predictions": [[1.0, 2.0]]})
    assert version.counters.in_flight == 0
    cells = find_block(plane.memory.region(0), ("fraud", 3))
    assert cells is not None
    assert cells[layout.UNKNOWN_COLUMNS] == 1


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    """Callers with large bodies cannot take all memory; what is given back can be held again."""
    bodies = BodyReader(small(Settings(), max_body_bytes=100))
    gate = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 100, "more_body": False}

    async def hold() -> None:
        async with bodies.read([], receive):
            await gate.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(9)]
    await until(lambda: tasks[8].done())
    assert "800 of 800 bytes in this worker" in str(tasks[8].exception())
    gate.set()
    await asyncio.gather(*tasks[:8])
    assert bodies.held_bytes == 0

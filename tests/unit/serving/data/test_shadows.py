"""Shadows over HTTP: they are compared and counted, and no caller ever notices one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from models.errors import RunFailed
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.lifecycle import State
from registry.traffic import Share, Traffic
from serving.data.batcher import BatchLimits
from serving.data.data_plane import ServedVersion
from serving.data.shadows import Activity, Shadows
from serving.metrics import layout
from serving.metrics.reading import VersionNumbers, find_block
from serving.settings import Settings
from tests.fakes import IDENTITY, FakeServable, ManualClock, identity, table
from tests.unit.serving.data.http_calls import INFER, PREDICT, v2
from tests.unit.serving.data.rig import Plane, Served, small, until

PRIMARY, SHADOW = 3, 5
MIB = 2**20
QUIET = Activity(0, 1)
ONE = v2(1)


@pytest.fixture
def settings() -> Settings:
    """Three copies may wait, however many requests come in their runs."""
    return small(Settings(), shadow_queue=3, shadow_overlap_percent=100)


@pytest.fixture
async def client(served: Served) -> Any:
    """A client on a real connection."""
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        yield client


def numbers(plane: Plane, version: int = SHADOW) -> VersionNumbers:
    found = VersionNumbers()
    if cells := find_block(plane.memory.region(0), ("fraud", version)):
        found.add(cells, has_gauges=True)
    return found


def results(plane: Plane, version: int = SHADOW) -> dict[str, int]:
    """Return what came of the copies that a version got, without zeros."""
    return {name: n for name, n in numbers(plane, version).shadow_results().items() if n}


def largest(plane: Plane) -> float:
    return layout.double_of(numbers(plane).cells[layout.SHADOW_MAX_DIFFERENCE])


def shadowed(plane: Plane, servable: FakeServable | None = None, **more: Any) -> FakeServable:
    """Route to version 3 with version 5 as its shadow."""
    servable = servable or FakeServable()
    plane.add(version=PRIMARY)
    plane.add(version=SHADOW, servable=servable, **more)
    plane.routes["fraud"] = Traffic((Share(PRIMARY, 100),), (SHADOW,))
    plane.publish()
    return servable


def scaled(factor: float) -> FakeServable:
    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        return [array * np.float32(factor) for array in identity(inputs)]

    return FakeServable(compute)


def raising(error: Exception) -> FakeServable:
    def compute(_: Mapping[str, Array]) -> list[Array]:
        raise error

    return FakeServable(compute)


async def test_a_shadow_gets_what_the_route_answered(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """V2, V1 and binary alike; the same outputs are counted as such, with no other trace."""
    shadow = shadowed(plane)
    assert (await client.post(INFER, json=v2(1, 2))).status_code == 200
    assert (await client.post(PREDICT, json={"instances": [[1, 2, 3, 4]]})).status_code == 200
    await client.post(INFER, json={**ONE, "outputs": [{"name": "y"}]})
    await until(lambda: results(plane) == {"same": 3})
    assert [run["x"].tolist() for run in shadow.runs] == [
        [[1.0] * 4, [2.0] * 4],
        [[1.0, 2.0, 3.0, 4.0]],
        [[1.0] * 4],
    ]
    found = numbers(plane)
    assert found.by_code() == {}
    assert found.cells[layout.ROWS] == found.cells[layout.IN_FLIGHT] == 0
    assert found.histogram(layout.DURATION) == ([0] * 18, 0)
    assert found.histogram(layout.QUEUE) == ([0] * 18, 0)
    assert sum(found.histogram(layout.INFERENCE)[0]) == 3
    assert results(plane, PRIMARY) == {}
    assert largest(plane) == 0.0


@pytest.mark.parametrize(
    ("factor", "result", "difference"),
    [(1.000001, "same", 9.54e-7), (1.01, "different", 0.01), (float("nan"), "different", np.inf)],
)
async def test_a_difference_is_counted_and_never_answered(
    plane: Plane, client: httpx.AsyncClient, factor: float, result: str, difference: float
) -> None:
    """The answer is the primary's; the largest difference stays in the metrics."""
    shadowed(plane, scaled(factor))
    response = await client.post(INFER, json=v2(1))
    assert response.json()["outputs"][0]["data"] == [1.0] * 4
    assert response.headers["x-ramrack-version"] == str(PRIMARY)
    await until(lambda: results(plane) == {result: 1})
    assert largest(plane) == pytest.approx(difference, rel=1e-3)


@pytest.mark.parametrize("error", [RunFailed("no"), ValueError("secret of a library")])
async def test_what_a_shadow_raises_is_counted_and_logged_once(
    plane: Plane, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Every copy fails, every caller is answered, and the log has one line of the shadows."""
    shadowed(plane, raising(error))
    with caplog.at_level(logging.WARNING, "serving.data.shadows"):
        for count in range(1, 4):
            response = await client.post(INFER, json=ONE)
            assert response.status_code == 200
            await until(lambda count=count: results(plane) == {"failed": count})
    lines = [record for record in caplog.records if record.name == "serving.data.shadows"]
    assert len(lines) == 1
    assert "shadow failed" in lines[0].message
    assert lines[0].__dict__["version"] == SHADOW


async def test_a_slow_shadow_holds_nobody_and_more_than_the_queue_is_shed(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """While one copy is computed three wait, and all callers are answered at once."""
    shadow = shadowed(plane, FakeServable(hold=True))
    await client.post(INFER, json=ONE)
    await until(lambda: shadow.under_way == 1)
    for _ in range(5):
        assert (await client.post(INFER, json=ONE)).status_code == 200
    assert results(plane) == {"shed": 2}
    assert plane.data_plane.shadows.waiting == 3
    shadow.release()
    await until(lambda: results(plane) == {"shed": 2, "same": 4})


async def test_a_shadow_that_hangs_is_ended(plane: Plane, client: httpx.AsyncClient) -> None:
    """max_run_s ends it as it ends any run; callers go on, and so does the next copy."""
    shadow = shadowed(plane, FakeServable(hold=True), limits=BatchLimits(256, 32, 0.05))
    await client.post(INFER, json=ONE)
    await until(lambda: results(plane) == {"failed": 1})
    assert shadow.under_way == 0
    assert (await client.post(INFER, json=ONE)).status_code == 200
    shadow.release()
    await until(lambda: results(plane) == {"failed": 1, "same": 1})


async def test_no_copy_is_computed_while_a_request_is_under_way(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """However long a request of any model takes, copies wait for its end."""
    shadow = shadowed(plane)
    slow = FakeServable(hold=True)
    plane.add("slow", 1, servable=slow)
    busy = asyncio.create_task(client.post("/v2/models/slow/infer", json=ONE))
    await until(lambda: slow.under_way == 1)
    for _ in range(4):
        await client.post(INFER, json=ONE)
    assert (results(plane), shadow.runs) == ({"shed": 1}, [])
    slow.release()
    await busy
    await until(lambda: results(plane) == {"shed": 1, "same": 3})


async def test_a_copy_waits_for_a_quiet_moment(plane: Plane) -> None:
    """Looked at again and again, a worker that never rests computes none; one that rests does."""
    shadow = shadowed(plane)
    looks: list[Activity] = []

    def busy() -> Activity:
        """Say that a request came and went since the last look."""
        looks.append(Activity(0, len(looks)))
        return looks[-1]

    worker = busy
    shadows = shadows_of(plane, lambda: worker())
    offer(plane, shadows)
    await until(lambda: len(looks) > 20)
    assert shadow.runs == []
    worker = lambda: Activity(0, 10**6)  # noqa: E731
    await until(lambda: results(plane) == {"same": 1})


class QuietWorker:
    """A worker whose requests are over before anyone looks."""

    begun = 10
    looks = 0

    def activity(self) -> Activity:
        self.looks += 1
        return Activity(0, self.begun)

    async def looked_at(self) -> None:
        """Wait until shadows have had every chance to begin."""
        seen = self.looks
        await until(lambda: self.looks > seen + 6)


async def first_of_two(
    plane: Plane, *, took_ms: int, begun: int
) -> tuple[FakeServable, Shadows[ServedVersion], QuietWorker, ManualClock]:
    """Offer two copies; the first takes so long, while so many requests begin and end."""
    shadow = shadowed(plane, FakeServable(hold=True))
    clock, worker = ManualClock(), QuietWorker()
    shadows = shadows_of(plane, worker.activity, overlap=1 / 128, clock=clock)
    offer(plane, shadows)
    offer(plane, shadows)
    await until(lambda: shadow.under_way == 1)
    clock.advance_ms(took_ms)
    worker.begun += begun
    shadow.release()
    await until(lambda: results(plane) == {"same": 1})
    return shadow, shadows, worker, clock


async def test_a_copy_is_computed_at_last_though_no_request_comes(plane: Plane) -> None:
    """An idle worker waits 128 times as long as the run that was disturbed, and then goes on."""
    shadow, _, worker, clock = await first_of_two(plane, took_ms=2, begun=1)
    await worker.looked_at()
    clock.advance_ms(255)
    await worker.looked_at()
    assert len(shadow.runs) == 1
    clock.advance_ms(1)
    await until(lambda: results(plane) == {"same": 2})


async def test_few_requests_may_come_while_a_copy_is_computed(plane: Plane) -> None:
    """After a run in which two came, the next is made when enough others have come."""
    shadow, shadows, worker, _ = await first_of_two(plane, took_ms=1, begun=2)
    worker.begun = 265
    await worker.looked_at()
    assert (shadows.waiting, len(shadow.runs)) == (1, 1)
    worker.begun = 266
    await until(lambda: results(plane) == {"same": 2})


def shadows_of(
    plane: Plane,
    activity: Callable[[], Activity],
    *,
    max_bytes: int = MIB,
    overlap: float = 1.0,
    clock: ManualClock | None = None,
) -> Shadows[ServedVersion]:
    return Shadows(
        plane.serving_map,
        activity,
        max_copies=9,
        max_bytes=max_bytes,
        overlap=overlap,
        clock=clock or ManualClock(),
    )


def offer(plane: Plane, shadows: Shadows[ServedVersion], arrays: int = 1) -> None:
    """Offer an answered request with so many outputs."""
    primary = plane.views["fraud"][PRIMARY].target
    assert primary is not None
    shadows.offer(primary, table(1), 1, None, [table(1)["x"]] * arrays, 100)


async def test_only_routed_and_answered_requests_are_copied(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """Not what names a version, not what was refused, and never to the version that answered."""
    shadow = shadowed(plane)
    plane.aliases["fraud"] = {"stable": PRIMARY}
    plane.routes["fraud"] = Traffic((Share(PRIMARY, 100),), (SHADOW, PRIMARY))
    plane.publish()
    for selector in ("3", "stable", "latest"):
        path = f"/v2/models/fraud/versions/{selector}/infer"
        assert (await client.post(path, json=ONE)).status_code == 200
    assert (await client.post(INFER, json={"inputs": []})).status_code == 400
    runs = len(shadow.runs)
    assert plane.data_plane.shadows.waiting == 0
    await client.post(INFER, json=ONE)
    await until(lambda: results(plane) == {"same": 1})
    assert (len(shadow.runs), results(plane, PRIMARY)) == (runs + 1, {})


def one_input(**changes: Any) -> Signature:
    spec = {"name": "x", "datatype": "FP32", "shape": (-1, 4), **changes}
    return Signature((TensorSpec(**spec),), IDENTITY.outputs)


@pytest.mark.parametrize(
    "signature",
    [one_input(name="z"), one_input(datatype="FP64"), one_input(columns=("a", "b", "c", "d"))],
)
async def test_a_shadow_that_takes_other_inputs_is_not_run(
    plane: Plane, client: httpx.AsyncClient, signature: Signature
) -> None:
    """Values decoded for one signature mean something else in another."""
    shadow = shadowed(plane, FakeServable(signature=signature))
    await client.post(INFER, json=ONE)
    await until(lambda: results(plane) == {"failed": 1})
    assert shadow.runs == []


async def test_outputs_whose_classes_stand_in_another_order_differ(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """Equal numbers under other labels are not the same answer."""
    outputs = (TensorSpec("y", "FP32", (-1, 4), labels=("d", "c", "b", "a")),)
    shadowed(plane, FakeServable(signature=Signature(IDENTITY.inputs, outputs)))
    await client.post(INFER, json=ONE)
    await until(lambda: results(plane) == {"different": 1})
    assert largest(plane) == float("inf")


async def test_a_copy_under_way_keeps_its_version_and_a_waiting_one_does_not(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """A drain waits for the run, then finds nothing that holds the version."""
    shadow = shadowed(plane, FakeServable(hold=True))
    await client.post(INFER, json=ONE)
    await until(lambda: shadow.under_way == 1)
    await client.post(INFER, json=ONE)
    assert plane.serving_map.handles("fraud", SHADOW) == 1
    plane.add_known("fraud", SHADOW, State.DRAINING, "unloading")
    drained = asyncio.create_task(plane.serving_map.drained("fraud", SHADOW))
    await client.post(INFER, json=ONE)
    assert not drained.done()
    shadow.release()
    async with asyncio.timeout(10):
        await drained
    await until(lambda: plane.data_plane.shadows.waiting == 0)
    assert (results(plane), len(shadow.runs)) == ({"same": 1}, 1)


async def test_a_shadow_that_serves_requests_of_its_own_is_left_to_them(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """A run that its caller left still has the slot: the copy is shed, not queued behind it."""
    shadow = shadowed(plane, FakeServable(hold=True))
    path = f"/v2/models/fraud/versions/{SHADOW}/infer"
    own = asyncio.create_task(client.post(path, json=ONE))
    await until(lambda: shadow.under_way == 1)
    own.cancel()
    await until(lambda: plane.data_plane.in_flight == 0)
    await client.post(INFER, json=ONE)
    await until(lambda: results(plane) == {"shed": 1})
    shadow.release()


async def test_copies_are_bounded_in_bytes(plane: Plane) -> None:
    """Body, inputs and outputs count; what a copy took is there again for the next ones."""
    shadowed(plane)
    room = 2 * (100 + 16 + 16)
    shadows = shadows_of(plane, lambda: QUIET, max_bytes=room)
    for shed in (1, 2):
        for _ in range(3):
            offer(plane, shadows)
        await until(lambda shed=shed: results(plane) == {"shed": shed, "same": 2 * shed})


async def test_a_closed_plane_takes_no_copies(plane: Plane, client: httpx.AsyncClient) -> None:
    """What waits is dropped, what runs is left alone, callers are answered to the end."""
    shadow = shadowed(plane, FakeServable(hold=True))
    await client.post(INFER, json=ONE)
    await until(lambda: shadow.under_way == 1)
    await client.post(INFER, json=ONE)
    await plane.data_plane.shadows.close()
    assert plane.data_plane.shadows.waiting == 0
    assert plane.serving_map.handles("fraud", SHADOW) == 0
    assert (await client.post(INFER, json=ONE)).status_code == 200
    assert plane.data_plane.shadows.waiting == 0
    assert results(plane) == {"shed": 1}
    shadow.release()


async def test_a_version_of_a_split_may_be_the_shadow_of_the_other(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """It gets the copies of what it did not answer itself, with keys as without."""
    shadowed(plane)
    route = Traffic((Share(PRIMARY, 50), Share(SHADOW, 50)), (SHADOW,))
    plane.routes["fraud"] = route
    plane.publish()
    of_primary = 0
    for number in range(10):
        headers = {"x-routing-key": f"user-{number}"} if number % 2 else {}
        response = await client.post(INFER, json=ONE, headers=headers)
        of_primary += response.headers["x-ramrack-version"] == str(PRIMARY)
        await until(lambda: plane.data_plane.shadows.waiting == 0)
    await until(lambda: results(plane) == {"same": of_primary})
    assert 0 < of_primary < 10


async def test_a_fault_in_taking_a_copy_is_not_the_callers(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    """The request was answered by then; whatever goes wrong is a line in the log."""
    shadowed(plane)
    shadows = shadows_of(plane, lambda: QUIET)
    offer(plane, shadows, arrays=2)
    assert "shadow failed" in caplog.text
    assert shadows.waiting == 0

"""Splits and routing keys over HTTP, with workers that know nothing of each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from registry.lifecycle import State
from registry.traffic import Share, Traffic
from serving.metrics.page import MetricsMemory
from serving.settings import Settings
from tests.unit.serving.data.http_calls import INFER, PREDICT, error_of, v2
from tests.unit.serving.data.rig import Connection, Plane, Served, serve

BODY = b'{"instances":[[1,2,3,4]]}'
HEAD = b"POST %s HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n%s\r\n"
KEYS = [b"user-%d" % number for number in range(500)]


def split(**weights: int) -> Traffic:
    return Traffic(tuple(Share(int(name[1:]), weight) for name, weight in weights.items()))


async def ask(connection: Connection, key: bytes | None = None) -> int:
    """Send one request; return the version that answered."""
    extra = b"" if key is None else b"x-routing-key: %s\r\n" % key
    await connection.send(HEAD % (PREDICT.encode(), len(BODY), extra) + BODY)
    response = await connection.response()
    assert response.status == 200
    return int(response.headers["x-ramrack-version"])


async def sides(served: Served, keys: Sequence[bytes] = KEYS) -> list[int]:
    connection = await served.connect()
    return [await ask(connection, key) for key in keys]


@pytest.fixture
def planes() -> Iterator[list[Plane]]:
    """Two workers with versions 3 and 4 of one model."""
    memory = MetricsMemory.create(2)
    with ThreadPoolExecutor(2) as executor:
        made = [Plane(Settings(), executor, memory.writer(slot), memory) for slot in range(2)]
        for plane in made:
            plane.add(version=3)
            plane.add(version=4)
        yield made


@pytest.fixture
async def workers(planes: list[Plane]) -> AsyncIterator[list[Served]]:
    async with serve(planes[0].app, Settings()) as one, serve(planes[1].app, Settings()) as other:
        yield [one, other]


def route(planes: list[Plane], traffic: Traffic) -> None:
    for plane in planes:
        plane.routes["fraud"] = traffic
        plane.publish()


@pytest.mark.slow
async def test_a_split_is_kept_to_a_point_over_two_workers(
    planes: list[Plane], workers: list[Served]
) -> None:
    """Of 1,000 requests, one worker given 700 and the other 300, 90 % and 10 % within a point."""
    route(planes, split(v3=90, v4=10))
    one, other = [await worker.connect() for worker in workers]
    count = Counter([await ask(other if i % 10 < 3 else one) for i in range(1000)])
    assert count.keys() == {3, 4}
    assert abs(count[4] - 100) <= 10


@pytest.mark.slow
async def test_keys_stay_over_workers_and_move_only_as_weights_do(
    planes: list[Plane], workers: list[Served]
) -> None:
    """Equal keys meet the same version everywhere; from 90/10 to 70/30 a fifth moves, one way."""
    route(planes, split(v3=90, v4=10))
    before = await sides(workers[0])
    assert before == await sides(workers[1])
    route(planes, split(v3=70, v4=30))
    after = await sides(workers[1])
    moved = Counter((a, b) for a, b in zip(before, after, strict=True) if a != b)
    assert moved.keys() == {(3, 4)}
    # The least that can move is 100; the keys are fixed, and so is how they fall.
    assert abs(moved[3, 4] - 100) <= 15
    assert abs(before.count(4) - 50) <= 15


async def test_a_key_is_bounded_and_an_empty_one_is_none(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """256 bytes decide, one more is refused on any path, none at all takes turns."""
    plane.add(version=3)
    plane.add(version=4)
    plane.routes["fraud"] = split(v3=50, v4=50)
    plane.publish()
    for path in (INFER, "/v2/models/fraud/versions/3/infer"):
        response = await client.post(path, json=v2(1), headers={"x-routing-key": "k" * 257})
        assert response.status_code == 400
        assert error_of(response) == "header x-routing-key: 257 bytes, at most 256 are allowed"

    async def found(key: str) -> set[str]:
        headers = {"x-routing-key": key}
        answers = [await client.post(INFER, json=v2(1), headers=headers) for _ in range(10)]
        return {answer.headers["x-ramrack-version"] for answer in answers}

    assert len(await found("k" * 256)) == 1
    assert await found("") == {"3", "4"}


async def test_a_key_of_a_version_that_is_not_ready_is_told_so(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """The 503 names the version that the key belongs to; without a key the other one answers."""
    plane.add(version=3)
    plane.add_known("fraud", 4, State.LOADING, "this worker is loading it")
    plane.routes["fraud"] = split(v3=50, v4=50)
    plane.publish()
    seen = Counter[int]()
    for number in range(30):
        key = {"x-routing-key": f"user-{number}"}
        response = await client.post(INFER, json=v2(1), headers=key)
        seen[response.status_code] += 1
        version = "3" if response.status_code == 200 else "4"
        assert response.headers["x-ramrack-version"] == version
        if response.status_code == 503:
            assert error_of(response) == (
                "model 'fraud' version 4 is LOADING: this worker is loading it"
            )
        assert (await client.post(INFER, json=v2(1))).status_code == 200
    assert seen.keys() == {200, 503}

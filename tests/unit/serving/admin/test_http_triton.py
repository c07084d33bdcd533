"""Triton's calls through HTTP: its index, its loads and its unloads."""

from __future__ import annotations

import pytest

from tests.unit.serving.admin.http_calls import MODELS, error_of

pytestmark = pytest.mark.timeout(30)


async def test_repository_index_is_as_triton_answers_it(world, client):
    """The index lists all versions; on demand only those that are READY."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")

    index = (await client.post("/v2/repository/index")).json()
    ready = (await client.post("/v2/repository/index", json={"ready": True})).json()

    assert [(e["name"], e["version"], e["state"]) for e in index] == [
        ("m", "1", "READY"), ("m", "2", "UNAVAILABLE"),
    ]  # fmt: skip
    assert ready == [{"name": "m", "version": "1", "state": "READY", "reason": ""}]


async def test_triton_load_takes_the_highest_and_unload_all(world, client):
    """Both answer 200 with an empty body when it is done."""
    for number in range(10):
        await world.push("m", str(number).encode())
    path = "/v2/repository/models/m"

    loaded = await client.post(f"{path}/load", json={})
    assert (loaded.status_code, loaded.content) == (200, b"")
    assert world.fleet.held == {("m", 10): True}
    refused = await client.post(f"{path}/unload", json={"parameters": {"unload_dependents": False}})
    assert "the route" in await error_of(refused, 409)
    await client.delete(f"{MODELS}/m/route")
    await world.load("m", 2)
    await client.delete(f"{MODELS}/m/route")
    done = await client.post(f"{path}/unload", json={"parameters": {"unload_dependents": False}})
    assert (done.status_code, done.content) == (200, b"")
    assert world.fleet.held == {}
    await error_of(await client.post("/v2/repository/models/none/load"), 404)


@pytest.mark.parametrize("name", ["config", "file:1/model.onnx", "other"])
async def test_triton_load_refuses_overrides(world, client, name):
    """A version's content is fixed: no load brings other files or settings along."""
    await world.push("m", b"graph")

    answer = await client.post("/v2/repository/models/m/load", json={"parameters": {name: "{}"}})

    assert name in await error_of(answer, 400)


async def test_triton_load_that_fails_says_why(world, client):
    """The reason of a failed load is the error's text."""
    bad = await world.push("m", b"bad")
    world.inspector.refused[bad.manifest.graph] = "cannot be parsed"

    answer = await client.post("/v2/repository/models/m/load")

    assert await error_of(answer, 400) == "cannot be parsed"

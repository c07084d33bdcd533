"""A parent that lives for months: what is gone leaves nothing behind in it.

The same few graphs come and go: their objects stay in the store, and are known, until a gc.
"""

from __future__ import annotations

import contextlib
import logging

import pytest

from models.errors import LoadFailed
from serving.control import operations
from tests.growth import live_objects

pytestmark = pytest.mark.timeout(60)
WARM = 3
ROUNDS = 5


@pytest.fixture(autouse=True)
def _without_keepers(monkeypatch):
    # pytest keeps what is logged, with the errors in it.
    for name in ("load_failures", "version_loads"):
        monkeypatch.setattr(logging.getLogger(f"serving.control.{name}"), "disabled", True)
    # The list of operations that ended fills up to its bound; that is no leak.
    monkeypatch.setattr(operations, "MAX_FINISHED", 2)


async def grown_by(world, work):
    """Return what a number of further rounds of ``work`` leave behind."""
    for number in range(WARM):
        await work(number)
    # The fake keeps what it was told for tests to look at; a fleet keeps the newest.
    del world.fleet.targets[:-1]
    before = live_objects()
    for number in range(WARM, WARM + ROUNDS):
        await work(number)
    del world.fleet.targets[:-1]
    return live_objects() - before


async def test_a_deleted_version_leaves_nothing_in_memory(world):
    """Version numbers are never used again: what is kept by one would stay for good."""
    await world.push_loaded("m", 1)

    async def round_of(_):
        record = await world.push("m", b"other graph")
        await world.load("m", record.version)
        await world.unload("m", record.version)
        await world.control.delete("m", record.version, world.actor)

    assert await grown_by(world, round_of) == {}


async def test_a_deleted_version_that_could_not_be_loaded_leaves_nothing(world):
    """The same for one that was refused: its error, and what the error saw, go with it."""
    await world.push_loaded("m", 1)

    async def round_of(_):
        record = await world.push("m", b"bad")
        world.inspector.refused[record.manifest.graph] = "not a graph"
        with contextlib.suppress(LoadFailed):
            await world.load("m", record.version)
        await world.control.delete("m", record.version, world.actor)

    assert await grown_by(world, round_of) == {}


async def test_a_model_that_is_gone_leaves_nothing_in_memory(world):
    """Settings, aliases and routes of a model go with its last version."""

    async def round_of(number):
        model = f"m{number}"
        record = await world.push(model, b"graph")
        await world.load(model, record.version)
        await world.control.traffic.delete_route(model, world.actor)
        await world.unload(model, record.version)
        await world.control.delete(model, record.version, world.actor)

    assert await grown_by(world, round_of) == {}

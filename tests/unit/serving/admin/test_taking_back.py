"""Changes of traffic that end half-way: rollbacks that load, and what no worker took."""

from __future__ import annotations

import asyncio
import errno

import pytest

from models.errors import LoadFailed
from registry.errors import Conflict
from registry.plan import Load, plan_routes
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish
from serving.control.plan_runner import PlanRunner
from serving.errors import DeadlineExpired
from tests.disk_model import ModelDisk
from tests.unit.serving.admin.traffic_steps import generation, set_route, split

pytestmark = pytest.mark.timeout(30)
whole = Traffic.whole


async def test_rollback_that_cannot_load_changes_nothing(world):
    """The route stays, and nothing that the rollback loaded stays."""
    await world.push_loaded("m", 3)
    await set_route(world, whole(2))
    await set_route(world, whole(3))
    await world.unload("m", 1)
    world.fleet.refused["m", 1] = "no memory"
    before = world.fleet.targets[-1]

    with pytest.raises(LoadFailed, match="no memory"):
        await world.control.traffic.rollback("m", 1, world.actor)

    after = world.fleet.targets[-1]
    assert (after.routes, after.versions) == (before.routes, before.versions)


async def test_what_a_rollback_loaded_goes_again_if_it_cannot_switch(world):
    """A stale ETag is found before anything is loaded, a full disk after it: nothing is left."""
    await world.push_loaded("m", 3)
    await set_route(world, whole(2))
    await set_route(world, whole(3))
    await world.unload("m", 1)
    etag = world.control.traffic.route("m").etag
    calls = len(world.inspector.calls)
    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.rollback("m", 1, world.actor, if_match='"0"')
    assert len(world.inspector.calls) == calls

    world.fleet.gate.clear()
    world.fleet.waiting.clear()
    rollback = asyncio.create_task(
        world.control.traffic.rollback("m", 1, world.actor, if_match=etag)
    )
    await world.fleet.waiting.wait()
    await set_route(world, whole(2))
    world.fleet.gate.set()
    with pytest.raises(Conflict, match="If-Match"):
        await rollback

    assert world.control.status("m", 1)[0] == "UNLOADED"
    assert world.control.traffic.route("m").traffic == whole(2)


async def test_loads_before_one_that_takes_too_long_are_undone(world):
    """All of what a plan needs is loaded, or nothing of it stays."""
    await world.push_loaded("m", 1)
    for content in (b"two", b"three"):
        await world.push("m", content)
    control = world.control

    def load(model, version, actor, reason):
        world.fleet.is_stuck = version == 3
        return control.load(model, version, actor, reason)

    def unload(*arguments):
        world.fleet.is_stuck = False
        return control.unload(*arguments)

    runner = PlanRunner(control.writer, load, unload)
    switch = plan_routes({"m": RouteWish(split((2, 50), (3, 50)))})
    with pytest.raises(DeadlineExpired, match="600 s"):
        await runner.run((Load("m", 2), Load("m", 3), *switch), world.actor, "")

    assert [control.status("m", v)[0] for v in (1, 2, 3)] == ["READY", "UNLOADED", "FAILED"]
    assert world.fleet.targets[-1].routes == {"m": whole(1)}


@pytest.mark.parametrize("kind", ["route", "alias", "alias_deleted", "settings", "route_deleted"])
async def test_change_that_no_worker_took_is_taken_back(world, kind):
    """The former state is a new generation, the reason is in the events, the caller hears."""
    await world.push_loaded("m", 2)
    control = world.control.traffic
    await control.set_alias("m", "old", 1, world.actor)
    before, first = world.control.model("m"), generation(world)
    calls = {
        "route": lambda: set_route(world, whole(2)),
        "alias": lambda: control.set_alias("m", "old", 2, world.actor),
        "alias_deleted": lambda: control.delete_alias("m", "old", world.actor),
        "settings": lambda: control.set_settings("m", {"priority": 3}, world.actor),
        "route_deleted": lambda: control.delete_route("m", world.actor),
    }
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match=r"slots \[0\].*former state is in force again"):
        await calls[kind]()

    after = world.control.model("m")
    assert (after.route.traffic, after.route.previous) == (whole(1), None)
    assert {a: e.version for a, e in after.aliases.items()} == {"old": 1}
    assert after.settings == before.settings
    assert [target.generation for target in world.fleet.targets[-2:]] == [first + 1, first + 2]
    assert world.fleet.targets[-1].routes == {"m": whole(1)}
    made, undone = world.store.events.read()[-2:]
    assert (made.kind, undone.kind, undone.who) == (kind, "taken_back", "server")
    assert "slots [0]" in undone.reason
    world.fleet.is_stuck = False
    await calls[kind]()


async def test_taking_back_leaves_what_someone_else_changed(world):
    """Only the change that failed is undone."""
    await world.push_loaded("m", 3)
    writer = world.control.writer

    async def meanwhile():
        world.fleet.before_time_out = None
        world.fleet.is_stuck = False
        await set_route(world, whole(3))

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired, match="changed again meanwhile"):
        await set_route(world, whole(2))

    assert writer.state.model("m").route.traffic == whole(3)


async def test_route_is_not_taken_back_to_what_cannot_answer(world):
    """The version that the route came from failed meanwhile: the new one stays."""
    await world.push_loaded("m", 2)

    async def meanwhile():
        world.fleet.before_time_out = None
        await world.control.loads.failures.take_out(("m", 1), "damaged", "damaged", world.actor)

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired):
        await set_route(world, whole(2))

    assert world.control.traffic.route("m").traffic == whole(2)


async def test_rollback_that_no_worker_took_is_kept(world):
    """The way back is not undone: what it leaves may be what keeps the worker."""
    await world.push_loaded("m", 2)
    await set_route(world, whole(2))
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match="is kept and will be taken"):
        await world.control.traffic.rollback("m", None, world.actor)

    assert world.control.traffic.route("m").traffic == whole(1)
    assert world.fleet.targets[-1].routes == {"m": whole(1)}


async def test_change_that_cannot_be_taken_back_says_so(make_world, tmp_path):
    """A full disk leaves the change in force, and the caller knows."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)

    async def meanwhile():
        disk.fail_in(1, errno.ENOSPC)

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired, match="could not be taken back"):
        await set_route(world, whole(2))

    assert world.control.traffic.route("m").traffic == whole(2)
    await world.stop()

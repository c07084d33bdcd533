"""Room that appears: what waits for memory and comes back by itself."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from serving.target import Target
from tests.unit.serving.admin.conftest import World
from tests.unit.serving.admin.memory_steps import BYTES, events, grown, restarted, settled

pytestmark = pytest.mark.timeout(30)


async def grown_and_named(world: World, alias: str) -> None:
    """Load two versions: the route names the second, and an alias the first."""
    await grown(world, "m", 2)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)
    await world.control.traffic.set_alias("m", alias, 1, world.actor)


async def room_made(world: World, name: str, version: int) -> None:
    """Unload what the route names, and wait for what that lets in."""
    await world.control.traffic.delete_route(name, world.actor)
    await world.unload(name, version)
    await settled(world)


async def test_what_is_asked_for_by_name_comes_back_when_room_appears(world):
    """An unload makes room for routed and aliased versions that wait, one after the other."""
    await grown(world, "big", 1)
    await grown_and_named(world, "prod")
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("big", 1): True}

    await room_made(world, "big", 1)

    assert world.fleet.held == {("m", 2): True}
    assert world.control.status("m", 2)[0] == "READY"
    assert world.control.status("m", 1)[0] == "FAILED"
    event = (await events(world, "load"))[-1]
    assert (event.who, event.reason) == ("server", "there is memory for it again")


async def test_what_comes_back_by_itself_never_becomes_the_route(world):
    """A removed route stays removed: no older version answers without being asked to."""
    await grown_and_named(world, "old")
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("m", 2): True}

    await room_made(world, "m", 2)

    assert world.fleet.held == {("m", 1): True}
    assert world.control.model("m").route is None
    assert world.fleet.targets[-1].routes == {}
    world.control.ledger.budget_bytes = 10 * BYTES
    await world.load("m", 2)
    assert world.control.traffic.route("m").traffic == Traffic.whole(2)


async def test_room_that_a_failed_restore_leaves_goes_to_what_waits(world):
    """At once, so that a version which answers is not left behind one that does not."""
    await grown(world, "a", 1)
    await grown(world, "m", 1)
    await grown(world, "z", 2)
    world.budget_bytes = 2 * BYTES + 100

    await world.restart(lambda fleet: fleet.refused.update({("a", 1): "cannot open"}))
    await world.control.restored()

    assert world.fleet.held == {("m", 1): True, ("z", 1): True}
    assert world.control.status("z", 2)[1].startswith("not loaded for lack of memory")
    event = (await events(world, "load"))[-1]
    assert (event.model, event.who, event.reason) == ("z", "server", "there is memory for it again")


async def test_room_that_a_failed_restore_leaves_serves_what_nothing_names_as_well(world):
    """A start brings back whatever was loaded, so what one leaves is for all of them."""
    await grown(world, "m", 3)
    world.budget_bytes = 2 * BYTES + 100

    await world.restart(lambda fleet: fleet.refused.update({("m", 2): "cannot open"}))
    await world.control.restored()

    assert world.fleet.held == {("m", 1): True, ("m", 3): True}
    assert world.control.status("m", 2) == ("FAILED", "cannot open")


async def test_room_that_a_failed_load_leaves_goes_to_what_waits(world):
    """While a load is under way its room is taken; as it fails, what waits for room is tried."""
    await grown(world, "m", 1)
    await grown(world, "z", 1)
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("m", 1): True}
    world.control.ledger.budget_bytes = 2 * BYTES + 100
    graph = (await world.push("bad", b"bad", b"b" * BYTES)).manifest.graph
    world.inspector.refused[graph] = "no model"
    world.inspector.gate.clear()
    operation = world.control.load("bad", 1, world.actor)
    await asyncio.to_thread(world.inspector.entered.wait, 20)
    assert world.control.plan("z", 1).fits is False

    world.inspector.gate.set()
    await operation.wait(20)
    await settled(world)

    assert operation.state == "failed"
    assert world.fleet.held == {("m", 1): True, ("z", 1): True}


async def test_two_that_no_worker_has_memory_for_are_tried_once_for_the_same_room(world):
    """The budget has room for both, the machine for none: they do not take turns for ever."""
    await grown(world, "a", 1)
    await grown(world, "m", 1)
    await grown(world, "z", 1)
    await world.restart(lambda fleet: fleet.without_memory.update({("m", 1), ("z", 1)}))
    await world.control.restored()
    before = len(world.fleet.targets)

    await room_made(world, "a", 1)

    assert world.fleet.held == {}
    tried = [
        key for old, new in itertools.pairwise(world.fleet.targets[before - 1:])
        for key in keys_of(new) - keys_of(old)
    ]  # fmt: skip
    assert tried == [("m", 1), ("z", 1)]


def keys_of(target: Target) -> set[tuple[str, int]]:
    return {(version.model, version.version) for version in target.versions}


async def test_room_that_a_quarantine_leaves_goes_to_what_waits(world):
    """What killed workers holds nothing any more; nobody has to unload it first."""
    await grown(world, "m", 1)
    await grown(world, "z", 1)
    await restarted(world, BYTES + 100)

    world.fleet.quarantine("m", 1, "killed three workers")
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await settled(world)

    assert world.fleet.held == {("z", 1): True}


async def test_a_worker_that_turns_out_to_hold_less_makes_room_for_what_waits(world):
    """What a new worker measures counts, and what it leaves is used."""
    world.inspector.private_bytes = 0
    await grown(world, "m", 1)
    await grown(world, "z", 1)
    await world.control.traffic.set_alias("z", "prod", 1, world.actor)
    await world.control.traffic.delete_route("z", world.actor)
    world.budget_bytes = 2 * BYTES + 100
    await world.restart(lambda fleet: fleet.private_bytes.update({("m", 1): 200}))
    await world.control.restored()
    assert world.fleet.held == {("m", 1): True}

    world.fleet.private_bytes.clear()
    world.fleet.arrived()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await settled(world)

    assert world.fleet.held == {("m", 1): True, ("z", 1): True}


async def test_a_route_that_follows_latest_goes_on_to_what_waited(world):
    """The highest version that there is memory for is the latest; then the one that waited."""
    await grown(world, "m", 2)
    await world.push("m", b"big", b"x" * 3 * BYTES)
    await world.load("m", 3)
    await world.control.traffic.set_route("m", LATEST_WISH, world.actor)
    await restarted(world, 2 * BYTES + 100)
    assert world.fleet.held == {("m", 1): True, ("m", 2): True}
    assert world.control.model("m").latest == 2
    assert world.control.traffic.route("m").traffic == Traffic.whole(3)

    await world.push("m", b"new", b"n")
    await world.load("m", 4)
    assert world.control.traffic.route("m").traffic == Traffic.whole(4)

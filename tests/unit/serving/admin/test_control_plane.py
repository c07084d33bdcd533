"""The control plane: routes, events, publishing and deletion."""

from __future__ import annotations

import asyncio

import pytest

from registry.errors import Conflict, NotFound
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish

pytestmark = pytest.mark.timeout(30)
to = RouteWish.whole
whole = Traffic.whole


async def test_rollback_goes_back_and_forth_in_one_call(world):
    """Without a number a rollback goes to the version that the route came from."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)

    assert (await world.control.traffic.rollback("m", None, world.actor)).traffic == whole(1)
    assert (await world.control.traffic.rollback("m", None, world.actor)).traffic == whole(2)
    assert [c.traffic for c in world.control.traffic.route("m").history] == [
        whole(v) for v in (1, 2, 1, 2)
    ]


async def test_rollback_loads_what_it_goes_to(world):
    """A version of the history that is not loaded any more is loaded first."""
    await world.push_loaded("m", 3)
    await world.control.traffic.set_route("m", to(2), world.actor)
    await world.control.traffic.set_route("m", to(3), world.actor)
    await world.unload("m", 1)

    route = await world.control.traffic.rollback("m", 1, world.actor)

    assert (route.traffic, route.previous) == (whole(1), whole(3))
    assert world.control.status("m", 1)[0] == "READY"


async def test_rollback_to_where_the_route_never_was_is_refused(world):
    """A rollback goes back; new versions are routed to."""
    await world.push_loaded("m", 2)

    with pytest.raises(Conflict, match="to version 2"):
        await world.control.traffic.rollback("m", 2, world.actor)
    with pytest.raises(Conflict, match="no version before 1"):
        await world.control.traffic.rollback("m", None, world.actor)


async def test_route_and_alias_refuse_what_is_not_ready(world):
    """Only READY versions can be named."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")

    with pytest.raises(Conflict, match="not loaded"):
        await world.control.traffic.set_route("m", to(2), world.actor)
    with pytest.raises(Conflict, match="not loaded"):
        await world.control.traffic.set_alias("m", "prod", 2, world.actor)
    with pytest.raises(NotFound):
        await world.control.traffic.set_route("m", to(9), world.actor)


async def test_if_match_refuses_a_change_of_what_changed_meanwhile(world):
    """A guarded change happens only on what the caller saw."""
    await world.push_loaded("m", 2)
    etag = world.control.traffic.route("m").etag
    await world.control.traffic.set_route("m", to(2), world.actor, if_match=etag)

    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.set_route("m", to(1), world.actor, if_match=etag)
    alias, _ = await world.control.traffic.set_alias("m", "a", 1, world.actor)
    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.delete_alias("m", "a", world.actor, if_match='"0"')
    await world.control.traffic.delete_alias("m", "a", world.actor, if_match=alias.etag)


async def test_every_change_is_an_event_with_before_and_after(world):
    """Events say what changed, who wanted it and why."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor, "better")
    await world.control.traffic.set_alias("m", "prod", 2, world.actor)
    await world.control.traffic.delete_alias("m", "prod", world.actor)
    await world.control.traffic.rollback("m", None, world.actor)
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)
    await world.control.delete("m", 1, world.actor)
    await world.control.gc(world.actor)
    events = await world.control.events(0, None, 100)

    assert [event.kind for event in events] == [
        "publish", "load", "publish", "load", "route", "alias", "alias_deleted", "rollback",
        "route_deleted", "unload", "delete", "gc",
    ]  # fmt: skip
    assert [event.seq for event in events] == list(range(1, 13))
    route = events[4]
    assert (route.who, route.address, route.reason) == ("tester", "127.0.0.1", "better")
    one, two = whole(1).to_json(), whole(2).to_json()
    assert route.before == {"route": {**one, "latest": False, "previous": None}}
    assert route.after == {"route": {**two, "latest": False, "previous": one}}


async def test_what_changes_nothing_is_no_event(world):
    """Setting what is set already neither records nor publishes anything."""
    await world.push_loaded("m", 1)
    before = (len(world.fleet.targets), world.store.events.last_seq)

    await world.control.traffic.set_route("m", to(1), world.actor)

    assert (len(world.fleet.targets), world.store.events.last_seq) == before


async def test_publishing_tells_the_workers_of_the_version(world):
    """A new version is known to the workers, so that they can say that it is not loaded."""
    await world.push("m", b"graph")

    entry = world.fleet.targets[-1].catalog["m"][1]
    assert (entry.state, entry.signature["inputs"][0]["name"]) == ("UNLOADED", "x")


async def test_delete_is_refused_while_loaded_or_loading(world):
    """Only a version that nothing uses can go."""
    await world.push_loaded("m", 2)
    with pytest.raises(Conflict, match="loaded"):
        await world.control.delete("m", 2, world.actor)
    world.inspector.gate.clear()
    await world.push("m", b"third")
    operation = world.control.load("m", 3, world.actor)
    with pytest.raises(Conflict, match="under way"):
        await world.control.delete("m", 3, world.actor)
    world.inspector.gate.set()
    await operation.wait()


async def test_deleted_version_is_gone_and_its_number_not_reused(world):
    """C07: a number is given once."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")
    await world.control.delete("m", 2, world.actor)

    assert 2 not in world.fleet.targets[-1].catalog["m"]
    assert (await world.push("m", b"two")).version == 3


async def test_cancelled_caller_does_not_cut_a_change_short(world):
    """A change that has begun is persisted, recorded and published, whoever waits for it."""
    await world.push_loaded("m", 2)
    task = asyncio.create_task(world.control.traffic.set_route("m", to(2), world.actor))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.control.writer.close()

    assert world.fleet.targets[-1].routes == {"m": Traffic.whole(2)}
    assert world.control.traffic.route("m").traffic == whole(2)

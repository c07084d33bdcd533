"""Releases: the routes of several models change as one, or not at all."""

from __future__ import annotations

import errno

import pytest

from registry.errors import Conflict, NotFound, StoreFull
from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from serving.control.traffic_control import GuardedWish
from serving.errors import DeadlineExpired
from tests.disk_model import ModelDisk
from tests.unit.serving.admin.traffic_steps import generation

pytestmark = pytest.mark.timeout(30)
whole = Traffic.whole


async def release(world, **wishes):
    return await world.control.traffic.release(
        {name: GuardedWish(*item) if isinstance(item, tuple) else GuardedWish(item)
         for name, item in wishes.items()},
        world.actor, "both",
    )  # fmt: skip


async def test_release_is_one_generation_with_an_event_for_each_model(world):
    """Workers never see one of the routes without the other."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    before, first = len(world.fleet.targets), generation(world)

    routes = await release(world, m=RouteWish.whole(2), n=LATEST_WISH)

    assert (len(world.fleet.targets), generation(world)) == (before + 1, first + 1)
    assert world.fleet.targets[-1].routes == {"m": whole(2), "n": whole(2)}
    assert [routes[name].is_latest for name in "mn"] == [False, True]
    events = world.store.events.read()[-2:]
    assert [(e.kind, e.model, e.reason) for e in events] == [
        ("release", "m", "both"), ("release", "n", "both"),
    ]  # fmt: skip
    assert [f'"{event.seq}"' for event in events] == [routes[name].etag for name in "mn"]


async def test_release_happens_as_a_whole_or_not_at_all(world):
    """One route that cannot be refuses all of them, and nothing was written."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 1)
    await world.push("n", b"not loaded")
    before = (generation(world), world.store.events.last_seq, len(world.fleet.targets))

    good = RouteWish.whole(2)
    for other, error, says in (
        (RouteWish.whole(2), Conflict, "n/2: it is not loaded"),
        (RouteWish.whole(7), NotFound, "no version 7"),
        ((RouteWish.whole(1), '"77"'), Conflict, "n: If-Match"),
    ):
        with pytest.raises(error, match=says):
            await release(world, m=good, n=other)
    with pytest.raises(NotFound, match=r"model .unknown. is not known: there are m, n"):
        await release(world, m=good, unknown=good)

    assert (generation(world), world.store.events.last_seq, len(world.fleet.targets)) == before


async def test_a_model_without_a_route_says_how_to_get_one(world):
    """READY versions are to be routed to, for a load of one changes nothing; else one is loaded."""
    await world.push_loaded("m", 2)
    control = world.control.traffic
    await control.delete_route("m", world.actor)
    with pytest.raises(NotFound, match=r"READY: 2, 1\).*`ramrack route m 2`"):
        control.route("m")
    await world.push("n", b"a graph")
    with pytest.raises(NotFound, match="no version of it is READY: load one"):
        control.route("n")


async def test_release_that_no_worker_took_is_taken_back_whole(world):
    """All models go back in one generation."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match="release of m, release of n"):
        await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))

    targets = [target.routes for target in world.fleet.targets[-2:]]
    assert targets == [{"m": whole(2), "n": whole(2)}, {"m": whole(1), "n": whole(1)}]


async def test_events_of_a_release_survive_a_crash_together(make_world, tmp_path):
    """The second event, whose append failed, is completed at the next start."""
    disk = ModelDisk(tmp_path / "store")
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    world.store.write_document("probe", {})  # the first writes the mark that there is one, too
    before = disk.steps
    world.store.write_document("probe", {})
    document_steps = disk.steps - before
    before = disk.steps
    world.store.events.append("probe")
    event_steps = disk.steps - before

    disk.fail_in(document_steps + event_steps + 1, errno.EIO)
    await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))
    assert [e.model for e in world.store.events.read() if e.kind == "release"] == ["m"]
    await world.stop()

    again = make_world(tmp_path / "store")
    await again.start()
    events = [e for e in again.store.events.read() if e.kind == "release"]
    assert [e.model for e in events] == ["m", "n"]
    assert [again.control.traffic.route(name).traffic for name in "mn"] == [whole(2)] * 2
    await again.stop()


async def test_release_that_cannot_be_written_is_no_release(make_world, tmp_path):
    """A full disk refuses it as a whole."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    before = len(world.fleet.targets)
    disk.fail_in(1, errno.ENOSPC)

    with pytest.raises(StoreFull):
        await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))

    assert len(world.fleet.targets) == before
    await world.stop()

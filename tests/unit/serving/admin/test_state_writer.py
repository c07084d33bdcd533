"""Persist, record, publish: what a crash or a failing disk leaves of a change."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil

import pytest

from registry.errors import Conflict, StoreFailed, StoreFull
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish
from serving.control.operations import Operation
from tests.disk_model import ModelDisk, PowerCut

pytestmark = pytest.mark.timeout(60)
to = RouteWish.whole
whole = Traffic.whole


async def prepare(world):
    """Three versions, two of them loaded, one only stored."""
    await world.push_loaded("m", 2)
    await world.push("m", b"third")


def script(world):
    """Changes of every kind. The unload runs here, so that a power cut reaches the test."""
    control, actor = world.control, world.actor
    unload = Operation("id", "unload", "m", 1, "now")
    return [
        lambda: control.traffic.set_route("m", to(2), actor, "why"),
        lambda: world.push("m", b"fourth"),
        lambda: control.delete("m", 3, actor),
        lambda: control.traffic.delete_route("m", actor),
        lambda: control.loads.unload(unload, actor, ""),
        lambda: control.delete("m", 1, actor),
    ]


def facts(world):
    """All that users see of the state, and the kinds of the events."""
    model = world.control.model("m")
    route = model.route
    return (
        sorted(world.control.writer.records["m"]),
        sorted(model.loaded),
        dict(model.failed),
        {name: alias.version for name, alias in model.aliases.items()},
        route and (route.traffic, route.previous, [c.seq for c in route.history]),
        [event.kind for event in world.store.events.read()],
    )


async def reference(make_world, root):
    world = make_world(root)
    await world.start()
    await prepare(world)
    seen = [facts(world)]
    for step in script(world):
        await step()
        seen.append(facts(world))
    await world.stop()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("is_torn", "stride"), [(False, 1), (True, 3)])
async def test_f03_power_cut_at_any_step_leaves_a_change_done_or_not(
    make_world, tmp_path, is_torn, stride
):
    """State, store and events agree after each crash point: all of a change, or nothing of it."""
    seen = await reference(make_world, tmp_path / "reference")
    base = make_world(tmp_path / "base")
    await base.start()
    await prepare(base)
    await base.stop()
    die_at, is_over = 1, False
    while not is_over:
        root = tmp_path / str(die_at)
        shutil.copytree(base.root, root)
        disk = ModelDisk(root)
        world = make_world(root, disk)
        await world.start()
        await world.control.restored()
        disk.die_in(die_at)
        done, is_over = 0, True
        try:
            for step in script(world):
                await step()
                done += 1
        except PowerCut:
            is_over = False
        await world.control.close()
        disk.cut(tmp_path / f"{die_at}-cut", random.Random(die_at) if is_torn else None)
        disk.release()

        after = make_world(tmp_path / f"{die_at}-cut")
        await after.start()
        await after.control.restored()
        assert facts(after) in seen[done : done + 2], (die_at, done)
        assert set(after.fleet.held.values()) <= {True}
        if die_at % 5 == 0:
            once = facts(after)
            await after.restart()
            assert facts(after) == once
        await after.stop()
        _release(world)
        die_at += stride
    assert die_at > 30


def _release(world):
    """Give the lock of a store up whose machine is off."""
    world.store._lock_file.close()


async def test_f04_change_that_cannot_be_written_is_not_published(make_world, tmp_path):
    """A full disk refuses the change, and nothing of it is seen anywhere."""
    root = tmp_path / "store"
    disk = ModelDisk(root)
    disk.sets_aside = False
    world = make_world(root, disk)
    await world.start()
    await prepare(world)
    before = (facts(world), len(world.fleet.targets))

    disk.fail_in(1, errno.ENOSPC)
    with pytest.raises(StoreFull):
        await world.control.traffic.set_route("m", to(2), world.actor)

    assert (facts(world), len(world.fleet.targets)) == before
    route = await world.control.traffic.set_route("m", to(2), world.actor)
    assert route.traffic == Traffic.whole(2)
    await world.stop()


async def test_f04_event_that_cannot_be_appended_is_not_lost(make_world, tmp_path):
    """The change holds; its event, kept in the state, comes before that of the next change."""
    root = tmp_path / "store"
    disk = ModelDisk(root)
    world = make_world(root, disk)
    await world.start()
    await prepare(world)
    state_steps = _steps_of_document(disk, world)

    disk.fail_in(state_steps + 1, errno.EIO)
    await world.control.traffic.set_route("m", to(2), world.actor, "first")
    assert world.store.events.read()[-1].kind == "publish"
    await world.control.traffic.set_route("m", to(1), world.actor, "second")

    assert [e.reason for e in world.store.events.read()[-2:]] == ["first", "second"]
    await world.stop()


async def test_f04_event_that_was_never_appended_is_completed_at_the_next_start(
    make_world, tmp_path
):
    """The state document carries the event of its last change over a crash."""
    root = tmp_path / "store"
    disk = ModelDisk(root)
    world = make_world(root, disk)
    await world.start()
    await prepare(world)
    disk.fail_in(_steps_of_document(disk, world) + 1, errno.EIO)
    await world.control.traffic.set_route("m", to(2), world.actor, "first")
    await world.stop()

    again = make_world(root)
    await again.start()
    assert again.store.events.read()[-1].reason == "first"
    assert again.control.traffic.route("m").traffic == whole(2)
    await again.stop()


def _steps_of_document(disk, world):
    world.store.write_document("probe", {})  # the first writes the mark that there is one, too
    before = disk.steps
    world.store.write_document("probe", {})
    return disk.steps - before


async def test_f04_store_that_fails_fails_the_load_alone(make_world, tmp_path):
    """A load whose state cannot be written ends with that reason; what serves goes on."""
    root = tmp_path / "store"
    disk = ModelDisk(root)
    world = make_world(root, disk)
    await world.start()
    await prepare(world)
    disk.fail_in(1, errno.EIO)

    with pytest.raises(StoreFailed):
        await world.load("m", 3)

    assert world.fleet.held == {("m", 1): True, ("m", 2): True}
    await world.load("m", 3)
    await world.stop()


async def test_changes_at_once_are_applied_one_after_another(world):
    """Each change sees what the one before it left; generations and numbers only rise."""
    await world.push_loaded("m", 2)
    results = await asyncio.gather(
        *(world.control.traffic.set_alias("m", f"a{n}", 1 + n % 2, world.actor) for n in range(20)),
        world.control.traffic.set_route("m", to(2), world.actor),
        return_exceptions=True,
    )

    assert [r for r in results if isinstance(r, Exception)] == []
    assert len(world.control.model("m").aliases) == 20
    generations = [target.generation for target in world.fleet.targets]
    assert generations == sorted(set(generations))
    seqs = [event.seq for event in world.store.events.read()]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_conflict_records_nothing(world):
    """A change that is refused is neither recorded nor published."""
    await world.push_loaded("m", 1)
    before = (len(world.fleet.targets), world.store.events.last_seq)

    with pytest.raises(Conflict):
        await world.control.delete("m", 1, world.actor)

    assert (len(world.fleet.targets), world.store.events.last_seq) == before

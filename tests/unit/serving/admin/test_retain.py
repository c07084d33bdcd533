"""Which old versions a publish leaves, and what else is set for a model."""

from __future__ import annotations

import asyncio
import errno

import pytest

from models.errors import LoadFailed
from registry.errors import Conflict
from tests.disk_model import ModelDisk
from tests.unit.serving.admin.traffic_steps import set_route, split

pytestmark = pytest.mark.timeout(30)


async def test_settings_are_changed_key_by_key_and_recorded(world):
    """A value sets, None resets, the rest stays; each change is an event with an etag."""
    await world.push_loaded("m", 1)
    control = world.control.traffic
    await control.set_settings("m", {"queue_rows": 5, "priority": 2}, world.actor, "why")
    state = await control.set_settings("m", {"priority": None, "max_run_s": 2}, world.actor)

    assert state.settings.to_json() == {"queue_rows": 5, "max_run_s": 2.0}
    assert world.fleet.targets[-1].settings == {"m": state.settings}
    event = world.store.events.read()[-1]
    assert (event.kind, state.settings_etag) == ("settings", f'"{event.seq}"')
    assert event.before == {"settings": {"queue_rows": 5, "priority": 2}}
    assert event.after == {"settings": {"queue_rows": 5, "max_run_s": 2.0}}
    with pytest.raises(Conflict, match="If-Match"):
        await control.set_settings("m", {"retain": 1}, world.actor, if_match='"0"')


async def test_settings_go_with_the_last_version(world):
    """Another model of the same name begins without them."""
    await world.push("m", b"one")
    await world.control.traffic.set_settings("m", {"retain": 1}, world.actor)
    await world.control.delete("m", 1, world.actor)
    await world.push("m", b"other")

    assert world.control.model("m").settings.retain is None


async def test_publish_retains_the_newest_of_what_nothing_names(world):
    """Loaded, routed, previous, shadowing, aliased and FAILED versions do not count and stay."""
    await world.push_loaded("m", 5)
    await set_route(world, split((2, 100), shadow=(3,)))
    await world.control.traffic.set_alias("m", "keep", 4, world.actor)
    bad = await world.push("m", b"bad")
    world.inspector.refused[bad.manifest.graph] = "no"
    with pytest.raises(LoadFailed):
        await world.load("m", 6)
    await world.unload("m", 5)
    await world.control.traffic.set_settings("m", {"retain": 2}, world.actor)
    for number in range(4):
        await world.push("m", f"old {number}".encode())

    assert sorted(world.control.writer.records["m"]) == [1, 2, 3, 4, 6, 8, 9, 10]
    gone = [e for e in world.store.events.read() if e.kind == "delete"]
    assert [(e.version, e.who) for e in gone] == [(5, "server"), (7, "server")]
    assert gone[0].reason == "retain: too old beside version 9"


async def test_ten_old_versions_are_retained_by_default(world):
    """The twelfth publish deletes the first version; the same content again deletes nothing."""
    for number in range(11):
        await world.push("m", b"%d" % number)
    assert len(world.control.writer.records["m"]) == 11
    await world.push("m", b"10")
    assert len(world.control.writer.records["m"]) == 11
    await world.push("m", b"twelfth")

    assert sorted(world.control.writer.records["m"]) == list(range(2, 13))


async def test_what_is_being_loaded_is_retained(world):
    """A load under way is no old version."""
    await world.push("m", b"one")
    await world.control.traffic.set_settings("m", {"retain": 0}, world.actor)
    world.inspector.gate.clear()
    operation = world.control.load("m", 1, world.actor)
    await world.push("m", b"two")
    world.inspector.gate.set()
    await operation.wait()

    assert world.control.status("m", 1)[0] == "READY"
    await world.push("m", b"three")
    assert sorted(world.control.writer.records["m"]) == [1, 3]


async def test_deletion_that_fails_does_not_fail_the_publish(make_world, tmp_path):
    """The new version is acknowledged; the next publish deletes what was left."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push("m", b"one")
    await world.control.traffic.set_settings("m", {"retain": 0}, world.actor)
    manifest = await asyncio.to_thread(world.manifest, "m", b"two")
    delete = world.control.delete

    async def failing(*arguments):
        disk.fail_in(1, errno.ENOSPC)
        await delete(*arguments)

    world.control.delete = failing
    assert (await world.control.publish(manifest, world.actor))[1]
    world.control.delete = delete
    assert sorted(world.control.writer.records["m"]) == [1, 2]
    await world.push("m", b"three")
    assert sorted(world.control.writer.records["m"]) == [3]
    await world.stop()


async def test_version_deleted_while_its_load_began_is_not_loaded(world):
    """The load ends with the reason, and the server goes on."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")
    world.inspector.gate.clear()
    operation = world.control.load("m", 2, world.actor)
    await asyncio.to_thread(world.inspector.entered.wait, 20)
    await world.control.writer.delete_version("m", 2, world.actor, "")
    world.inspector.gate.set()
    await operation.wait()

    assert "no version 2" in operation.reason
    assert world.fleet.held == {("m", 1): True}

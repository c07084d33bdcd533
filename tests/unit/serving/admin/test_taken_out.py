"""Versions that are taken out while they serve: damaged, or deadly to workers."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from registry.errors import OverBudget
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish
from tests.disk_model import ModelDisk
from tests.unit.serving.admin.conftest import QUIET, World

pytestmark = pytest.mark.timeout(30)
to = RouteWish.whole


async def test_quarantined_version_fails_and_the_route_goes_back(world):
    """What killed too many workers is taken out; its route goes to the previous version."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)

    world.fleet.quarantine("m", 2, "in flight at three worker deaths")
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    assert world.fleet.held == {("m", 1): True}
    assert world.fleet.targets[-1].routes == {"m": Traffic.whole(1)}
    assert world.control.status("m", 2) == ("FAILED", "in flight at three worker deaths")
    assert world.control.traffic.route("m").previous is None


async def test_quarantine_of_a_load_under_way_fails_that_load(world):
    """A version that kills the workers while it is loaded ends its operation with the reason."""
    await world.push("m", b"graph")
    world.fleet.gate.clear()
    world.fleet.waiting.clear()
    operation = world.control.load("m", 1, world.actor)
    await world.fleet.waiting.wait()

    world.fleet.quarantine("m", 1, "killed three workers")
    world.fleet.gate.set()
    await operation.wait()

    assert operation.reason == "killed three workers"
    assert world.fleet.held == {}


def break_object(world: World, digest: str) -> None:
    path = world.store.objects_dir / digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)


async def test_damage_found_before_a_respawn_fails_the_version(world):
    """C04: a worker that replaces a dead one never maps a damaged object."""
    await world.push_loaded("m", 1)
    record = await world.push("m", b"two", b"w" * 100)
    await world.load("m", 2)
    path = world.store.objects_dir / record.manifest.tensors[0].digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"v" * 100)

    await world.control.before_respawn()

    assert world.fleet.held == {("m", 1): True}
    assert world.control.status("m", 2)[0] == "FAILED"


async def test_only_touched_versions_and_suspects_are_doubtful(world):
    """The others may be mapped at once by a worker that replaces a dead one."""
    for version, content in enumerate((b"one", b"two", b"three"), 1):
        await world.push("m", content, content * 30)
        await world.load("m", version)
    break_object(world, world.control.writer.record("m", 2).manifest.tensors[0].digest)

    assert await world.control.doubtful() == {("m", 2)}
    assert await world.control.doubtful([("m", 3)]) == {("m", 2), ("m", 3)}
    await world.control.before_respawn()
    assert await world.control.doubtful() == set()


async def test_a_suspect_is_hashed_though_nobody_touched_it(world, monkeypatch):
    """A disk that fails to read changes no file; the version comes before others that wait."""
    for version, content in enumerate((b"one", b"two"), 1):
        await world.push("m", content, content * 30)
        await world.load("m", version)
    hashed = []
    verify = world.store.verify_objects
    monkeypatch.setattr(
        world.store, "verify_objects",
        lambda digests, thorough=False: (
            hashed.extend((digest, thorough) for digest in digests), verify(digests)
        ),
    )  # fmt: skip

    await world.control.before_respawn([("m", 2)])

    suspect = world.control.writer.record("m", 2).manifest.object_digests
    other = world.control.writer.record("m", 1).manifest.object_digests
    assert {digest for digest, is_thorough in hashed if is_thorough} == suspect
    assert {digest for digest, _ in hashed[: len(suspect)]} == suspect
    assert {digest for digest, is_thorough in hashed if not is_thorough} == other


async def test_a_damaged_object_of_many_versions_is_hashed_once(world):
    """All of them are FAILED by the one look."""
    for version, content in enumerate((b"one", b"two", b"three"), 1):
        await world.push("m", content, b"shared" * 30)
        await world.load("m", version)
    break_object(world, world.control.writer.record("m", 1).manifest.tensors[0].digest)
    before = world.store.damage_found

    await world.control.before_respawn()

    assert {world.control.status("m", version)[0] for version in (1, 2, 3)} == {"FAILED"}
    assert world.store.damage_found - before == 1


async def test_others_serve_while_a_damaged_version_is_taken_out(world):
    """They wait for no worker to give it back, and no target in between is without them."""
    await world.push_loaded("other", 1)
    await world.push_loaded("m", 1)
    record = await world.push("m", b"two", b"w" * 100)
    await world.load("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)
    path = world.store.objects_dir / record.manifest.tensors[0].digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"")
    before = len(world.fleet.targets)
    world.fleet.gate.clear()  # from here on no worker says that it gave anything back

    async with asyncio.timeout(10):  # for ever, if it waited for them
        await world.control.before_respawn()

    assert world.control.status("m", 2)[0] == "FAILED"
    since = world.fleet.targets[before:]
    assert since
    for target in since:
        serving = {(v.model, v.version) for v in target.versions if v.is_serving}
        assert serving == {("other", 1), ("m", 1)}
        assert target.routes == {"other": Traffic.whole(1), "m": Traffic.whole(1)}
    assert [world.control.status(*key)[0] for key in (("other", 1), ("m", 1))] == ["READY"] * 2
    # The way of other models stays open as well.
    await world.control.traffic.set_alias("other", "stable", 1, world.actor)
    assert world.control.writer.state.model("other").aliases["stable"].version == 1
    world.fleet.gate.set()


async def test_a_damaged_version_gives_its_memory_back_without_an_unload(world):
    """What FAILED is neither counted nor mapped any more once the workers gave it back."""
    await world.push_loaded("m", 1)
    before = world.control.ledger.committed_bytes()
    record = await world.push("m", b"two", b"w" * 100)
    await world.load("m", 2)
    break_object(world, record.manifest.tensors[0].digest)
    world.fleet.gate.clear()

    # It is a worker's start that waits for this, so this must not wait for the workers.
    await world.control.before_respawn()
    assert world.control.ledger.unreleased_bytes() > 0
    world.fleet.gate.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    assert world.control.ledger.unreleased_bytes() == 0
    assert world.control.ledger.committed_bytes() == before
    assert world.control.residency.of(("m", 2)) is None
    assert world.control.status("m", 2)[0] == "FAILED"


async def test_the_residency_check_gives_back_what_it_found_damaged(tmp_path):
    """Also where no worker died: the look for evicted pages takes the same way."""
    world = World(tmp_path / "other", replace(QUIET, residency_check_s=0.01))
    await world.start()
    record = await world.push("m", b"one", b"w" * 100)
    await world.load("m", 1)
    break_object(world, record.manifest.tensors[0].digest)

    async def find_damage() -> frozenset[tuple[str, int]]:
        return frozenset({("m", 1)})

    release, released = world.control.residency.release, asyncio.Event()

    async def tell_of_release(*arguments):
        await release(*arguments)
        released.set()

    world.control.residency.release = tell_of_release
    world.control.residency.check = find_damage
    async with asyncio.timeout(20):
        await released.wait()

    assert world.control.ledger.committed_bytes() == 0
    assert world.control.status("m", 1)[0] == "FAILED"
    assert world.control.residency.of(("m", 1)) is None
    await world.stop()


async def test_memory_of_what_failed_lets_in_what_waits_for_it(world):
    """The next load finds the room that a damaged version left."""
    record = await world.push("m", b"one", b"w" * 100)
    await world.load("m", 1)
    await world.push("n", b"two", b"v" * 100)
    world.control.ledger.budget_bytes = 150
    with pytest.raises(OverBudget):
        await world.load("n", 1)
    break_object(world, record.manifest.tensors[0].digest)

    await world.control.before_respawn()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    await world.load("n", 1)

    assert world.fleet.held == {("n", 1): True}


async def test_damage_that_cannot_be_recorded_does_not_stop_the_respawn(make_world, tmp_path):
    """With a failing disk a worker still comes back; the damage is in the log."""
    disk = ModelDisk(tmp_path / "store")
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 1)
    path = next(iter(world.store.objects_dir.iterdir()))
    path.chmod(0o644)
    path.write_bytes(b"x")
    disk.fail_in(1, errno.EIO)

    await world.control.before_respawn()
    assert world.control.status("m", 1)[0] == "READY"
    await world.control.before_respawn()
    assert world.control.status("m", 1)[0] == "FAILED"
    await world.stop()

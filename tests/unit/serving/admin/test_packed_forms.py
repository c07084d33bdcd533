"""Packed weights of loaded versions: through restarts, damage, and workers that do not use them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.errors import LoadFailed
from models.servable import Inspection
from registry.manifest import Manifest
from tests.unit.serving.admin.conftest import MIB, FakeInspector, World, digest_of

pytestmark = pytest.mark.timeout(30)

BLOB = b"packed weights"
GRAPH = b"packed graph"


class PackingInspector(FakeInspector):
    """Packs every version into the same two objects, unless it is told that it cannot."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.failure = ""
        self.graph = GRAPH

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        found = super().__call__(manifest, memory_bytes)
        if self.failure:
            raise LoadFailed(self.failure)
        blob, graph = self.world.put(BLOB), self.world.put(self.graph)
        return replace(
            found, mode="packed", mode_reason="it pays", graph=graph,
            resident={blob: 100 * MIB, graph: len(self.graph)},
        )  # fmt: skip


@pytest.fixture
def packing(world: World) -> PackingInspector:
    """The inspector of ``world`` and of those that follow it, for the next restart."""
    return PackingInspector(world)


async def loaded(world: World, packing: PackingInspector) -> None:
    world.inspector = packing
    await world.restart()
    await world.push("m", b"graph", b"w" * 100)
    await world.load("m", 1)


def inspection(world: World) -> Inspection:
    (version,) = world.fleet.targets[-1].versions
    return version.inspection


def damage(world: World, data: bytes) -> None:
    path = world.store.objects_dir / digest_of(data).removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(bytes(reversed(data)))


async def shown(world: World) -> dict[str, str]:
    async with world.client() as client:
        answer = await client.get("/admin/v1/models/m/versions/1")
    assert answer.status_code == 200
    return dict(answer.json()["weights"])


async def test_the_mode_and_its_reason_are_shown(world, packing):
    """Who wonders where the memory went can read how the weights are held, and why so."""
    await loaded(world, packing)

    assert await shown(world) == {"mode": "packed", "reason": "it pays"}


async def test_damage_before_a_respawn_costs_speed_and_not_the_version(world, packing):
    """All workers load the version as it was published; what was packed is used no more."""
    await loaded(world, packing)
    before = world.fleet.targets[-1].versions[0].form
    damage(world, BLOB)

    await world.control.before_respawn()

    found = inspection(world)
    assert world.control.status("m", 1)[0] == "READY"
    assert (found.mode, found.graph, found.has_prepacking) == ("mapped", "", False)
    assert not found.is_batchable
    assert digest_of(BLOB) in (await shown(world))["reason"]
    assert world.fleet.targets[-1].versions[0].form != before


async def test_the_next_start_packs_again_what_was_damaged(world, packing):
    """Being mapped for want of anything better does not last."""
    await loaded(world, packing)
    damage(world, BLOB)
    await world.control.before_respawn()

    await world.restart()
    await world.control.restored()

    assert inspection(world).mode == "packed"
    assert world.control.status("m", 1)[0] == "READY"


async def test_an_undamaged_start_keeps_what_is_known(world, packing):
    """The inspector, which remembers, is asked; the state is not written for nothing."""
    await loaded(world, packing)
    known = inspection(world)

    await world.restart()
    await world.control.restored()

    assert inspection(world) == known


async def test_a_start_on_another_machine_takes_what_is_packed_there(world, packing):
    """The state says what this machine's workers open."""
    await loaded(world, packing)
    packing.graph = b"packed graph of another processor"

    await world.restart()
    await world.control.restored()

    assert inspection(world).graph == digest_of(packing.graph)


async def test_a_start_that_cannot_pack_serves_all_the_same(world, packing):
    """What was packed is a cache: without it the version is opened as it was published."""
    await loaded(world, packing)
    packing.failure = "its inspection took longer than 1 s"

    await world.restart()
    await world.control.restored()

    assert world.control.status("m", 1)[0] == "READY"
    assert (inspection(world).mode, inspection(world).graph) == ("mapped", "")
    assert "took longer than 1 s" in inspection(world).mode_reason


async def test_a_worker_that_copies_all_the_same_is_told_of(world, packing):
    """The figure that counts is what the worker took, and the version is shown as what it is."""
    world.inspector = packing
    await world.restart(lambda fleet: fleet.private_bytes.update({("m", 1): 40 * MIB}))
    await world.push("m", b"graph", b"w" * 100)
    await world.load("m", 1)

    assert world.control.status("m", 1)[0] == "READY"
    found = await shown(world)
    assert found["mode"] == "private"
    assert f"a worker took {40 * MIB} bytes for itself" in found["reason"]
    assert world.control.ledger.versions()["m", 1].private_bytes_per_worker == 40 * MIB

"""Packed weights of loaded versions: through restarts, damage, and workers that do not use them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from models.errors import LoadFailed
from models.servable import Inspection
from registry.manifest import Manifest
from tests.store_driver import digest_of
from tests.unit.serving.admin.conftest import MIB, FakeInspector, World

pytestmark = pytest.mark.timeout(30)

BLOB = b"packed weights" * 10_000
GRAPH = b"packed graph"


class PackingInspector(FakeInspector):
    """Packs every version into the same two objects, unless it is told that it cannot."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.failure = ""
        self.graph = GRAPH
        self.read_bytes = len(BLOB)
        self.form = {"mode": "packed", "mode_reason": "it pays"}

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        found = super().__call__(manifest, memory_bytes)
        if self.failure:
            raise LoadFailed(self.failure)
        blob, graph = self.world.put(BLOB), self.world.put(self.graph)
        resident = {blob: self.read_bytes, graph: len(self.graph)}
        if self.form["mode"] == "private":
            resident = {graph: 0}
        return replace(found, **self.form, graph=graph, resident=resident)


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


async def test_a_start_whose_answers_have_drifted_serves_and_says_so(world, packing):
    """What served before serves on; its reason and one event tell that it answers otherwise."""
    await loaded(world, packing)
    drift = "its answers have drifted since it was pushed: golden row 1: y is 2, was 1"
    packing.drifted[world.control.writer.record("m", 1).manifest.graph] = drift

    for _ in range(2):
        await world.restart()
        await world.control.restored()

        assert world.control.status("m", 1) == ("READY", drift)
        assert inspection(world).mode == "packed"
        events = [e for e in world.store.events.read() if e.kind == "drifted"]
        assert [(e.model, e.version, e.reason) for e in events] == [("m", 1, drift)]

    packing.drifted.clear()
    await world.restart()
    await world.control.restored()
    assert world.control.status("m", 1) == ("READY", "loaded and warmed up in every worker")


async def test_a_start_also_tells_what_has_drifted_that_was_never_packed(world):
    """Another processor or runtime may answer otherwise whatever becomes of the weights."""
    await world.push_loaded("m", 1)
    drift = "its answers have drifted since it was pushed: golden row 1: y is 2, was 1"
    world.inspector.drifted[world.control.writer.record("m", 1).manifest.graph] = drift

    await world.restart()
    await world.control.restored()

    assert world.control.status("m", 1) == ("READY", drift)
    events = [e for e in world.store.events.read() if e.kind == "drifted"]
    assert [(e.model, e.version, e.reason) for e in events] == [("m", 1, drift)]


async def test_a_start_that_cannot_inspect_keeps_what_was_never_packed(world):
    """It served before."""
    await world.push_loaded("m", 1)
    before = inspection(world)
    world.inspector.refused[world.control.writer.record("m", 1).manifest.graph] = "too slow"

    await world.restart()
    await world.control.restored()

    assert world.control.status("m", 1)[0] == "READY"
    assert inspection(world) == before


async def test_a_start_that_cannot_pack_serves_all_the_same(world, packing):
    """What was packed is a cache: without it the version is opened as it was published."""
    await loaded(world, packing)
    packing.failure = "its inspection took longer than 1 s"

    await world.restart()
    await world.control.restored()

    assert world.control.status("m", 1)[0] == "READY"
    assert (inspection(world).mode, inspection(world).graph) == ("mapped", "")
    assert "took longer than 1 s" in inspection(world).mode_reason


async def test_a_start_that_cannot_pack_what_was_damaged_says_why(world, packing, caplog):
    """The reason is what this start met, no promise of an earlier one; the log has it, too."""
    await loaded(world, packing)
    damage(world, BLOB)
    await world.control.before_respawn()
    packing.failure = "its inspection took longer than 1 s"

    for _ in range(2):
        caplog.clear()
        await world.restart()
        await world.control.restored()

        assert world.control.status("m", 1)[0] == "READY"
        reason = (await shown(world))["reason"]
        assert reason.startswith("it could not be packed again")
        assert "took longer than 1 s" in reason
        assert "m/1 is opened as it was published" in caplog.text
        assert "took longer than 1 s" in caplog.text


async def test_a_start_that_finds_the_published_form_best_says_so(world, packing):
    """The damage of an earlier run is no longer the reason."""
    await loaded(world, packing)
    damage(world, BLOB)
    await world.control.before_respawn()
    before = inspection(world)
    world.inspector = FakeInspector()
    await world.restart()
    await world.control.restored()

    assert "damaged" in before.mode_reason
    assert "damaged" not in inspection(world).mode_reason


async def test_a_worker_that_copies_all_the_same_is_told_of(world, packing):
    """The figure that counts is what the worker took, and the version is shown as what it is."""
    world.inspector = packing
    copied_bytes = len(BLOB) // 2
    await world.restart(lambda fleet: fleet.private_bytes.update({("m", 1): copied_bytes}))
    await world.push("m", b"graph", b"w" * 100)
    await world.load("m", 1)

    assert world.control.status("m", 1)[0] == "READY"
    found = await shown(world)
    assert found["mode"] == "private"
    assert f"a worker took {copied_bytes} bytes for itself" in found["reason"]
    assert world.control.ledger.versions()["m", 1].private_bytes_per_worker == copied_bytes


async def test_of_a_packed_object_only_the_part_that_is_read_counts(world, packing):
    """Budget, ledger and residency agree; the published tensors, which nobody reads, are out."""
    packing.read_bytes = 9000
    await loaded(world, packing)

    async with world.client() as client:
        memory = (await client.get("/admin/v1/memory")).json()
        plan = (await client.post("/admin/v1/models/m/versions/1:plan")).json()
        version = (await client.get("/admin/v1/models/m/versions/1")).json()
    (entry,) = memory["versions"]
    held_bytes = 9000 + len(GRAPH)
    assert (entry["object_bytes"], entry["resident_bytes"]) == (held_bytes, held_bytes)
    assert (entry["weight_bytes"], entry["unique_bytes"], entry["shared_bytes"]) == (100, 9000, 0)
    assert (entry["mode"], entry["mode_reason"]) == ("packed", "it pays")
    assert memory["committed_bytes"] == memory["resident_bytes"] == held_bytes
    assert plan["needs_bytes"] == 0
    assert "mode" not in version["memory"]


async def test_a_graph_that_only_loading_reads_counts_nothing(world, packing):
    """In the runtime's own format all memory is private, once for each worker."""
    packing.form = {"mode": "private", "mode_reason": "trees"}
    packing.private_bytes = 1000
    await loaded(world, packing)

    (entry,) = world.control.ledger.versions().values()
    assert (entry.object_bytes, entry.private_bytes_per_worker) == (0, 1000)
    assert world.control.ledger.committed_bytes() == 2 * 1000
    assert world.control.residency.total().size_bytes == 0


async def test_what_one_form_took_does_not_count_against_another(world, packing):
    """A version that could not be packed once is counted as packed as soon as it is."""
    await world.push("m", b"graph", b"w" * 100)
    world.fleet.private_bytes["m", 1] = 60 * MIB
    world.inspector.private_bytes = 10 * MIB
    await world.load("m", 1)
    assert world.control.ledger.committed_bytes() == 2 * 60 * MIB + 105
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)

    world.control.loads._inspect = packing
    world.fleet.private_bytes["m", 1] = 1000
    world.control.ledger.budget_bytes = 2 * 60 * MIB + 105
    await world.load("m", 1)

    assert world.control.ledger.versions()["m", 1].private_bytes_per_worker == 1000
    assert world.control.ledger.committed_bytes() == 2 * 1000 + len(BLOB) + len(GRAPH)


async def test_a_plan_knows_the_last_form_and_no_older_one(world, packing):
    """What was packed and is packed no more: the next load reads the tensors again."""
    await loaded(world, packing)
    damage(world, BLOB)
    await world.control.before_respawn()
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)

    plan = world.control.plan("m", 1)

    assert (plan.object_bytes, plan.private_bytes_per_worker) == (105, 0)


async def test_an_unload_during_the_check_leaves_nothing_mapped(world, packing):
    """The check takes no turn of its own: what left meanwhile is not held again."""
    await loaded(world, packing)
    await world.control.traffic.delete_route("m", world.actor)
    damage(world, BLOB)
    hold, unloads = world.control.residency.hold, []

    async def unload_meanwhile(*arguments):
        if not unloads:
            unloads.append(world.control.unload("m", 1, world.actor))
            await unloads[0].wait(20)
        await hold(*arguments)

    world.control.residency.hold = unload_meanwhile
    await world.control.before_respawn()

    assert unloads[0].error is None
    assert world.control.residency.of(("m", 1)) is None
    assert world.control.residency.total().size_bytes == 0


async def everything_else() -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


async def test_the_ledger_counts_what_the_published_form_takes(world, packing):
    """An inspection knew the other form only; what the workers measure now stands at once."""
    await loaded(world, packing)
    damage(world, BLOB)
    world.fleet.private_bytes["m", 1] = 5 * MIB

    await world.control.before_respawn()
    await everything_else()

    assert world.control.ledger.versions()["m", 1].private_bytes_per_worker == 5 * MIB


async def test_a_worker_that_comes_back_later_is_counted_too(world):
    """It is not there yet when the damage is found, and may take more than its sibling."""
    await world.push_loaded("m", 1)
    await world.control.restored()
    world.fleet.private_bytes["m", 1] = 5 * MIB

    world.fleet.arrived()
    await everything_else()

    assert world.control.ledger.versions()["m", 1].private_bytes_per_worker == 5 * MIB


async def test_damage_to_what_no_run_reads_takes_no_good_session_away(world, packing, caplog):
    """Workers have copied all of it: only one that starts has to open the version otherwise."""
    packing.form = {"mode": "private", "mode_reason": "trees"}
    await loaded(world, packing)
    before = world.fleet.targets[-1].versions[0].form
    damage(world, GRAPH)

    await world.control.before_respawn()

    assert (inspection(world).mode, inspection(world).graph) == ("private", "")
    assert world.fleet.targets[-1].versions[0].form == before
    assert "m/1 is private: what was packed is damaged" in caplog.text


async def test_what_was_mapped_is_left_though_it_is_shown_as_private(world, packing):
    """A worker that copied most of a packed version still maps the rest."""
    await world.stop()
    world.inspector = packing
    await world.start(lambda fleet: fleet.private_bytes.update({("m", 1): len(BLOB) // 2}))
    await world.push("m", b"graph", b"w" * 100)
    await world.load("m", 1)
    before = world.fleet.targets[-1].versions[0].form
    damage(world, BLOB)

    await world.control.before_respawn()

    assert inspection(world).mode == "private"
    assert world.fleet.targets[-1].versions[0].form != before

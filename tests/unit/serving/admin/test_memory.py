"""Memory of loaded versions: reservations, what unloads leave, what is held in RAM and let go."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path

import pytest

from models.errors import LoadFailed
from registry.errors import OverBudget
from registry.traffic_rules import RouteWish
from serving.fleet import WorkerInfo
from serving.settings import Settings
from serving.target import Target
from tests.unit.serving.admin.conftest import QUIET, World


def maps() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.fixture
async def wide(tmp_path: Path):
    """A world that loads two versions at once."""
    made = World(tmp_path / "store", dataclasses.replace(QUIET, concurrent_loads=2))
    await made.start()
    yield made
    await made.stop()


async def test_loads_at_once_cannot_both_take_the_last_room(wide):
    """What is being loaded is reserved from its admission on, before anything is in the state."""
    wide.control.ledger.budget_bytes = 1500
    for name in ("a", "b"):
        await wide.push(name, b"graph", name.encode() * 1000)
    wide.inspector.gate.clear()
    first = wide.control.load("a", 1, wide.actor)
    await asyncio.to_thread(wide.inspector.entered.wait, 20)

    second = wide.control.load("b", 1, wide.actor)
    await second.wait(20)

    assert isinstance(second.error, OverBudget)
    assert second.error.plan["free_bytes"] == 495
    wide.inspector.gate.set()
    await first.wait(20)
    assert first.state == "succeeded"
    assert wide.control.ledger.committed_bytes() == 1005


async def test_two_loads_run_beside_each_other_where_that_is_set(wide):
    """The inspection of one does not wait for that of the other."""
    for name in ("a", "b"):
        await wide.push(name, name.encode())
    both = threading.Barrier(2)
    wide.inspector.gate.wait = lambda timeout_s: both.wait(timeout_s) >= 0
    operations = [wide.control.load(name, 1, wide.actor) for name in ("a", "b")]
    for operation in operations:
        await operation.wait(20)
        assert operation.state == "succeeded"


async def test_a_load_that_fails_gives_its_reservation_and_its_pages_back(world):
    """Refused by the inspection or by a worker: nothing stays counted or mapped."""
    bad = await world.push("m", b"bad", b"w" * 5000)
    world.inspector.refused[bad.manifest.graph] = "no"
    with pytest.raises(LoadFailed):
        await world.load("m", 1)
    world.inspector.refused.clear()
    world.fleet.refused["m", 1] = "out of memory"
    with pytest.raises(LoadFailed):
        await world.load("m", 1)

    assert world.control.ledger.committed_bytes() == 0
    assert world.control.residency.of(("m", 1)) is None
    assert str(world.store.objects_dir) not in maps()


async def test_a_loaded_version_is_in_ram_and_an_unloaded_one_is_not_mapped(world, client):
    """The memory page counts what the kernel holds; an unload lets go of it."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two", b"w" * 70_000)
    await world.load("m", 2)
    memory = (await client.get("/admin/v1/memory")).json()
    entry = next(item for item in memory["versions"] if item["version"] == 2)
    assert entry["object_bytes"] == entry["resident_bytes"] == 70_003
    assert (entry["weight_bytes"], entry["unique_bytes"], entry["mode"]) == (
        70_000, 70_000, "private",
    )  # fmt: skip
    assert memory["resident_bytes"] == 70_003 + len(b"m graph 0")

    await world.unload("m", 2)

    assert (await client.get("/admin/v1/models/m/versions/2")).json()["memory"][
        "resident_bytes"
    ] == 0
    assert maps().count(str(world.store.objects_dir)) == 1


async def test_versions_say_with_whom_they_share(world, client):
    """Shared bytes name the versions that hold them, too."""
    await world.push("m", b"one", b"w" * 1000)
    await world.push("n", b"two", b"w" * 1000, b"own")
    await world.load("m", 1)
    await world.load("n", 1)
    memory = (await client.get("/admin/v1/memory")).json()
    assert [item["shared_with"] for item in memory["versions"]] == [
        [{"model": "n", "version": 1}], [{"model": "m", "version": 1}],
    ]  # fmt: skip


async def test_what_an_unload_left_is_summed_over_the_workers(world, client):
    """Each worker measures for itself; the last unload is named."""
    await world.push_loaded("m", 2)
    world.fleet.slots = tuple(WorkerInfo(n, None, "serving", 1, (), 0) for n in (0, 1))
    world.fleet.left_bytes["m", 2] = {0: 300, 1: 50}

    await world.unload("m", 2)

    memory = (await client.get("/admin/v1/memory")).json()
    assert memory["unreleased_bytes"] == 350
    assert memory["last_unload"] == {
        "model": "m", "version": 2, "unreleased_bytes": 350, "reason": "",
    }  # fmt: skip


async def test_what_cannot_be_measured_is_null_with_the_reason(world, client):
    """A worker that was replaced during the unload did not see it: no number is made up."""
    await world.push_loaded("m", 2)
    world.fleet.slots = tuple(WorkerInfo(n, None, "serving", 1, (), 0) for n in (0, 1))
    world.fleet.left_bytes["m", 2] = {0: 300}

    await world.unload("m", 2)

    memory = (await client.get("/admin/v1/memory")).json()
    assert memory["unreleased_bytes"] is None
    assert "slots [1] were replaced" in memory["last_unload"]["reason"]


async def test_who_could_go_is_neither_routed_nor_aliased_nor_the_way_back(world, client):
    """The plan and the 507 name only versions that an unload would be allowed for."""
    for number in range(5):
        await world.push("m", b"g", f"{number}".encode() * 1000)
    for version in range(1, 5):
        await world.load("m", version)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)
    await world.control.traffic.set_alias("m", "prod", 3, world.actor)
    world.control.ledger.budget_bytes = 4100

    refused = await client.post("/admin/v1/models/m/versions/5:load?wait=20")

    expected = [{"model": "m", "version": 4, "frees_bytes": 1000}]
    assert refused.status_code == 507
    assert refused.json()["plan"]["would_evict"] == expected
    plan = (await client.post("/admin/v1/models/m/versions/5:plan")).json()
    assert (plan["would_evict"], plan["fits_after_evicting"]) == (expected, True)
    assert world.control.status("m", 4)[0] == "READY"


async def test_the_check_takes_a_version_out_whose_object_is_gone_bad(tmp_path):
    """A truncated object is found by the look for evicted pages; its version FAILS."""
    world = World(tmp_path / "store", Settings(residency_check_s=0.01))
    await world.start()
    record = await world.push("m", b"graph", b"w" * 70_000)
    await world.load("m", 1)
    path = world.store.objects_dir / record.manifest.tensors[0].digest.removeprefix("sha256:")
    path.chmod(0o644)
    is_out, publish = asyncio.Event(), world.fleet.publish

    def watch(target: Target) -> None:
        publish(target)
        if not target.versions:
            is_out.set()

    world.fleet.publish = watch
    path.write_bytes(b"short")
    async with asyncio.timeout(20):
        await is_out.wait()
    assert world.control.status("m", 1)[0] == "FAILED"
    await world.stop()


async def test_each_worker_counts_with_what_it_measured_itself(world):
    """One that had to copy the weights does not make the others count as if they had, too."""
    await world.push("m", b"one", b"w" * 100)
    await world.load("m", 1)
    ledger = world.control.ledger
    before = ledger.committed_bytes()

    async def measured(*by_worker: int) -> int:
        world.fleet.private_by_worker["m", 1] = by_worker
        await world.control.loads.caught_up()
        return ledger.committed_bytes() - before

    assert ledger.workers == 2
    assert await measured(500, 20) == 520
    memory = ledger.versions()["m", 1]
    assert (memory.private_bytes_per_worker, memory.private_bytes) == (500, 520)
    # Of a worker that is not back yet the most is expected, and of one that left nothing.
    assert await measured(500) == 1000
    assert await measured(20, 20) == 40


async def test_private_memory_falls_when_all_workers_hold_less(world):
    """What an earlier load took is no longer held, and the inspection's figure is the least."""
    world.inspector.private_bytes = 10
    world.fleet.private_bytes["m", 1] = 400
    await world.push_loaded("m", 1)
    ledger = world.control.ledger
    assert ledger.versions()["m", 1].private_bytes_per_worker == 400
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)

    world.fleet.private_bytes["m", 1] = 30
    await world.load("m", 1)
    assert ledger.versions()["m", 1].private_bytes_per_worker == 30

    world.fleet.private_bytes["m", 1] = 0
    await world.push_loaded("b", 1)
    assert ledger.versions()["m", 1].private_bytes_per_worker == 10

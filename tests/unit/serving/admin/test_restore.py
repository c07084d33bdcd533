"""A start: what was loaded comes back, whatever happened to the store meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from registry.errors import Conflict, Corrupt
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish
from tests.disk_model import FullDisk

pytestmark = pytest.mark.timeout(30)
to = RouteWish.whole
whole = Traffic.whole


async def test_restart_loads_again_what_was_loaded_routed_first(world):
    """After a start everything is READY again; ready is said only then."""
    await world.push_loaded("a", 2)
    await world.push_loaded("b", 1)
    await world.push_loaded("c", 1)
    await world.control.traffic.set_alias("b", "live", 1, world.actor)
    await world.control.traffic.set_route("a", to(2), world.actor)
    asked = sorted(world.inspector.calls)
    world.inspector.calls.clear()

    await world.restart()
    await world.control.restored()

    targets = world.fleet.targets
    orders = [[(v.model, v.version) for v in target.versions] for target in targets]
    # All that are routed share two steps, not two each; what is kept for a rollback comes later.
    routed = [("a", 2), ("b", 1), ("c", 1)]
    assert orders == [[], routed, routed, [*routed, ("a", 1)], [*routed, ("a", 1)],
                      [*routed, ("a", 1)]]  # fmt: skip
    assert [t.is_restored for t in targets] == [False] * (len(targets) - 1) + [True]
    assert world.fleet.held == dict.fromkeys([*routed, ("a", 1)], True)
    assert targets[-1].routes["a"] == Traffic.whole(2)
    # It remembers, and is asked for what it does not: of another processor or runtime.
    assert sorted(world.inspector.calls) == asked


async def test_a_rollback_to_a_damaged_version_names_it_and_leaves_the_route(world):
    """Not the object alone, which nobody knows who rolls back."""
    await world.push_loaded("m", 3)
    traffic = world.control.traffic
    for version in (2, 3):
        await traffic.set_route("m", RouteWish.whole(version), world.actor)
    await world.control.unload("m", 1, world.actor).wait(20)
    graph = world.control.writer.record("m", 1).manifest.graph
    path = world.store.objects_dir / graph.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"M graph 0")

    with pytest.raises(Corrupt, match=r"^m/1 cannot be loaded, so the route stays as it is: "):
        await traffic.rollback("m", 1, world.actor)

    assert traffic.route("m").traffic.versions == (3,)


async def test_restart_with_a_damaged_version_brings_the_others_back(world):
    """A version whose objects are damaged is FAILED, and its route goes back."""
    await world.push_loaded("m", 1)
    record = await world.push("m", b"two", b"w" * 100)
    await world.load("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)
    await world.stop()
    path = world.store.objects_dir / record.manifest.tensors[0].digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"v" * 100)
    await world.start()
    await world.control.restored()

    assert world.control.status("m", 2)[0] == "FAILED"
    assert world.fleet.held == {("m", 1): True}
    assert world.control.traffic.route("m").traffic == whole(1)
    assert world.fleet.targets[-1].is_restored


async def test_restart_fails_only_the_version_that_the_workers_refuse(world):
    """The others of its batch answer, and its own reason is told."""
    for name in ("a", "b", "c"):
        await world.push_loaded(name, 1)

    await world.restart(lambda fleet: fleet.refused.update({("b", 1): "no such operator"}))
    await world.control.restored()

    assert world.control.status("b", 1) == ("FAILED", "no such operator")
    assert world.fleet.held == {("a", 1): True, ("c", 1): True}


async def test_restart_gives_each_version_of_a_late_batch_its_own_time(world):
    """One that keeps the workers busy for too long does not fail those beside it."""
    for name in ("a", "b", "c"):
        await world.push_loaded(name, 1)

    await world.restart(lambda fleet: setattr(fleet, "stuck_on", ("b", 1)))
    await world.control.restored()

    state, reason = world.control.status("b", 1)
    assert (state, "did not come to generation" in reason) == ("FAILED", True)
    assert world.fleet.held == {("a", 1): True, ("c", 1): True}


async def test_restart_without_a_record_that_was_removed_by_hand(world):
    """Both planes list the version as FAILED with the reason; rm forgets it."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)
    await world.stop()
    (world.root / "models" / "m" / "versions" / "2.json").unlink()
    await world.start()
    await world.control.restored()

    entry = world.fleet.targets[-1].catalog["m"][2]
    assert (entry.state, entry.reason) == ("FAILED", "its record cannot be read from the store")
    assert world.control.status("m", 2)[0] == "FAILED"
    assert world.control.traffic.route("m").traffic == Traffic.whole(1)
    assert list((await world.control.verify()).damaged) == ["m/2"]
    await world.control.delete("m", 2, world.actor)
    assert set(world.fleet.targets[-1].catalog["m"]) == {1}
    assert (await world.control.verify()).damaged == {}


async def test_restart_without_any_record_of_a_model_leaves_a_way_out(world):
    """The route to what is lost can be removed, and then the version."""
    await world.push_loaded("m", 1)
    await world.stop()
    (world.root / "models" / "m" / "versions" / "1.json").unlink()
    await world.start()
    await world.control.restored()

    with pytest.raises(Conflict, match="route sends requests to it"):
        await world.control.delete("m", 1, world.actor)
    await world.control.traffic.delete_route("m", world.actor)
    await world.control.delete("m", 1, world.actor)
    assert world.fleet.targets[-1].catalog == {}


async def test_start_without_the_state_that_was_removed_by_hand_is_refused(world):
    """A store that had a state is no new one; removing its mark as well begins anew."""
    await world.push_loaded("m", 1)
    await world.stop()
    (world.root / "state" / "state.json").unlink()
    with pytest.raises(
        Corrupt, match=r"restore state/state.json .* or, .* remove state/state.kept"
    ):
        await world.start()
    assert "document state" in world.store.verify().damaged
    await asyncio.to_thread(world.store.close)
    (world.root / "state" / "state.kept").unlink()
    await world.start()
    assert world.control.status("m", 1)[0] == "UNLOADED"


async def test_restart_within_a_smaller_budget_keeps_what_fits(world):
    """What does not fit any more waits for memory; the routed version comes first."""
    await world.push("m", b"one", b"a" * 600)
    await world.push("m", b"two", b"b" * 600)
    await world.load("m", 1)
    await world.load("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)
    world.budget_bytes = 1000

    await world.restart()
    await world.control.restored()

    assert world.fleet.held == {("m", 2): True}
    assert "budget" in world.control.status("m", 1)[1]


async def test_load_that_the_end_of_the_server_cut_short_is_failed(world):
    """A load nobody acknowledged is not repeated by itself."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")
    world.fleet.gate.clear()
    world.fleet.waiting.clear()
    operation = world.control.load("m", 2, world.actor)
    await world.fleet.waiting.wait()

    await world.restart()
    await world.control.restored()

    assert operation.reason == "the server stopped before it ended"
    assert world.control.status("m", 2) == (
        "FAILED", "the server ended while it was being loaded: load it again",
    )  # fmt: skip
    assert world.fleet.held == {("m", 1): True}
    await world.load("m", 2)


async def test_version_waiting_for_its_restore_can_be_asked_for(world):
    """A load of a version that the restore has not reached brings it back."""
    await world.push_loaded("a", 1)
    await world.push_loaded("b", 1)
    await world.restart(lambda fleet: fleet.gate.clear())
    await world.fleet.waiting.wait()
    assert world.control.status("b", 1)[0] == "LOADING"
    with pytest.raises(Conflict, match="start"):
        await world.control.traffic.set_route("b", to(1), world.actor)
    operation = world.control.load("b", 1, world.actor)
    world.fleet.gate.set()
    await operation.wait()
    await world.control.restored()

    assert operation.state == "succeeded"
    assert world.fleet.held == {("a", 1): True, ("b", 1): True}


async def test_a_restart_on_a_full_disk_brings_everything_back(world):
    """What was loaded serves again: neither a start nor its restore writes anything."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)
    generation = world.control.writer.state.generation

    world.files = FullDisk()
    await world.restart()
    await world.control.restored()

    assert [world.control.status("m", version)[0] for version in (1, 2)] == ["READY", "READY"]
    assert world.control.traffic.route("m").traffic == whole(2)
    assert world.fleet.targets[-1].is_restored
    assert world.control.writer.state.generation > generation


async def test_what_most_clients_ask_for_is_first_in_the_target(world):
    """Routed, aliased, what a rollback goes to, others; of each the small ones come first."""
    for version in (1, 2, 3, 4, 5):
        await world.push("m", bytes([version]), bytes([version]) * (60 - version))
        await world.load("m", version)
    await world.control.traffic.set_route("m", to(4), world.actor)
    await world.control.traffic.set_alias("m", "next", 3, world.actor)

    assert [v.version for v in world.fleet.targets[-1].versions] == [4, 3, 1, 5, 2]

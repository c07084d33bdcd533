"""Lack of memory: what waits for it and comes back, and what is over the budget and serves on."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools

import pytest

from models.errors import LoadFailed, OutOfMemory
from registry.errors import Conflict, OverBudget
from registry.traffic import Share, Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from serving.target import Target
from tests.disk_model import UnsyncedFiles
from tests.unit.serving.admin.conftest import World

pytestmark = pytest.mark.timeout(30)
BYTES = 600


async def grown(world: World, name: str, count: int) -> None:
    """Load versions of 603 bytes each, which share nothing."""
    for number in range(count):
        weights = f"{name}{number}".encode().ljust(BYTES)
        await world.push(name, b"%3d" % number, weights)
        await world.load(name, number + 1)


async def restarted(world: World, budget_bytes: int) -> None:
    world.budget_bytes = budget_bytes
    await world.restart()
    await world.control.restored()


async def settled(world: World) -> None:
    """Wait until no operation is under way."""
    while running := world.control.operations.under_way():
        for operation in running:
            await operation.wait(20)
        await asyncio.sleep(0)


async def events(world: World, kind: str) -> list:
    return [event for event in await world.control.events(0, None, 100) if event.kind == kind]


async def test_what_finds_no_memory_at_a_start_comes_back_at_the_next_one_with_room(world, client):
    """It stays wanted and routed, says what it needs, and nothing is to be done but start again."""
    await grown(world, "m", 2)
    await world.control.traffic.set_alias("m", "prod", 1, world.actor)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)
    route = world.control.traffic.route("m")

    await restarted(world, 1000)

    assert world.fleet.held == {("m", 2): True}
    state, reason = world.control.status("m", 1)
    assert state == "FAILED"
    assert reason.startswith(
        "not loaded for lack of memory: m/1 needs 603 bytes (603 of weights and 0 private in each "
        "of 2 workers), 397 of the budget of 1000 are free: no version that may be unloaded makes "
        "room,"
    )
    assert reason.endswith("as soon as an unload makes room, or at a start with room for it")
    assert [(event.model, event.version) for event in await events(world, "waits_for_memory")] == [
        ("m", 1)
    ]
    assert world.fleet.targets[-1].catalog["m"][1].reason == reason

    await restarted(world, 100 * BYTES)

    assert world.fleet.held == {("m", 1): True, ("m", 2): True}
    assert world.control.status("m", 1)[0] == "READY"
    assert world.control.traffic.route("m") == route
    assert world.control.model("m").aliases["prod"].version == 1


async def test_ready_lists_what_waits_for_memory(world):
    """The body names it with its reason; the server is ready all the same, unless asked else."""
    await grown(world, "m", 2)
    await restarted(world, 1000)

    async with world.client() as client:
        answer = await client.get("/v2/health/ready")
        assert [item["version"] for item in answer.json()["failed"]] == [2]
    world.settings = dataclasses.replace(world.settings, ready_requires="all")
    async with world.client() as client:
        answer = await client.get("/v2/health/ready")
        assert (answer.status_code, "1 versions FAILED" in answer.json()["error"]) == (503, True)


async def test_routed_versions_get_memory_before_all_others(world):
    """Whatever their names: first who answers, then who has an alias, then the rest."""
    await grown(world, "a", 2)
    await grown(world, "z", 2)
    await world.control.traffic.set_alias("z", "prod", 2, world.actor)
    await world.control.traffic.delete_route("a", world.actor)

    await restarted(world, 2 * BYTES + 100)
    assert world.fleet.held == {("z", 1): True, ("z", 2): True}
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("z", 1): True}
    await restarted(world, 10 * BYTES)
    assert len(world.fleet.held) == 4


async def test_a_route_to_what_waits_stays_and_the_rest_of_a_split_answers(world):
    """Neither route nor way back is lost with a start in too little memory."""
    await grown(world, "m", 3)
    split = Traffic((Share(2, 60), Share(3, 40)))
    await world.control.traffic.set_route("m", RouteWish(split), world.actor)

    await restarted(world, BYTES + 100)

    route = world.control.traffic.route("m")
    assert (route.traffic, route.previous) == (split, Traffic.whole(1))
    assert world.fleet.held == {("m", 2): True}
    target = world.fleet.targets[-1]
    assert (target.routes["m"], target.slots) == (Traffic.whole(2), {})
    await world.push("m", b"new", b"n")
    await world.load("m", 4)
    assert world.control.traffic.route("m").previous == Traffic.whole(1)
    with pytest.raises(OverBudget):
        await world.control.traffic.rollback("m", None, world.actor)
    assert world.control.traffic.route("m").traffic == split

    await restarted(world, 10 * BYTES)
    target = world.fleet.targets[-1]
    assert (target.routes["m"], target.slots["m"]) == (split, route.slots)


async def test_a_plan_of_what_a_start_is_to_bring_back_says_whether_there_is_room(world):
    """It is wanted and not admitted yet: it needs its memory, beside what came back before it."""
    await grown(world, "m", 2)
    writer, ledger = world.control.writer, world.control.ledger
    ledger.budget_bytes = 1000
    writer.restoring.add(("m", 1))
    found = world.control.plan("m", 1)
    writer.restoring.discard(("m", 1))

    assert (found.needs_bytes, found.free_bytes, found.fits) == (BYTES + 3, 397, False)


async def test_nobody_stands_in_for_a_whole_route(world):
    """No older version answers without being asked to; requests learn why from the catalog."""
    await grown(world, "a", 1)
    await grown(world, "m", 1)
    await restarted(world, BYTES + 100)

    target = world.fleet.targets[-1]
    assert world.fleet.held == {("a", 1): True}
    assert target.routes["m"] == Traffic.whole(1)
    assert "lack of memory: m/1 needs 600" in target.catalog["m"][1].reason


async def test_nothing_can_be_moved_to_what_waits(world):
    """A route or an alias to it is refused with the figures."""
    await grown(world, "m", 2)
    await restarted(world, 1000)

    for change in (
        world.control.traffic.set_route("m", RouteWish.whole(2), world.actor),
        world.control.traffic.set_alias("m", "a", 2, world.actor),
    ):
        with pytest.raises(Conflict, match="m/2: FAILED: not loaded for lack of memory"):
            await change
    with pytest.raises(Conflict, match="waits for memory to be loaded: unload it first"):
        await world.control.delete("m", 2, world.actor)


async def test_a_load_of_what_waits_says_what_is_missing_and_works_with_room(world):
    """Refused, it goes on waiting; once something is unloaded it loads, and the event says who."""
    await grown(world, "m", 3)
    await restarted(world, 2 * BYTES + 100)
    assert world.fleet.held == {("m", 1): True, ("m", 2): True}
    assert world.control.plan("m", 3).needs_bytes == BYTES + 3

    with pytest.raises(OverBudget, match=r"94 of the budget .* unload m/2 \(gives 603\)"):
        await world.load("m", 3)

    assert world.control.status("m", 3)[1].startswith("not loaded for lack of memory")
    assert len(await events(world, "waits_for_memory")) == 1
    assert 3 in world.control.model("m").loaded
    await world.unload("m", 2)
    await settled(world)
    assert world.fleet.held == {("m", 1): True}
    await world.load("m", 3)
    assert world.fleet.held == {("m", 1): True, ("m", 3): True}
    assert (await events(world, "load"))[-1].version == 3
    await restarted(world, 2 * BYTES + 100)
    assert world.fleet.held == {("m", 1): True, ("m", 3): True}


async def test_what_is_asked_for_by_name_comes_back_when_room_appears(world):
    """An unload makes room for routed and aliased versions that wait, one after the other."""
    await grown(world, "big", 1)
    await grown(world, "m", 2)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)
    await world.control.traffic.set_alias("m", "prod", 1, world.actor)
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("big", 1): True}

    await world.control.traffic.delete_route("big", world.actor)
    await world.unload("big", 1)
    await settled(world)

    assert world.fleet.held == {("m", 2): True}
    assert world.control.status("m", 2)[0] == "READY"
    assert world.control.status("m", 1)[0] == "FAILED"
    event = (await events(world, "load"))[-1]
    assert (event.who, event.reason) == ("server", "there is memory for it again")


async def test_what_comes_back_by_itself_never_becomes_the_route(world):
    """A removed route stays removed: no older version answers without being asked to."""
    await grown(world, "m", 2)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)
    await world.control.traffic.set_alias("m", "old", 1, world.actor)
    await restarted(world, BYTES + 100)
    assert world.fleet.held == {("m", 2): True}

    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 2)
    await settled(world)

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

    await world.control.traffic.delete_route("a", world.actor)
    await world.unload("a", 1)
    await settled(world)

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


async def test_a_version_says_how_it_comes_back_by_what_names_it_now(world):
    """Asked for by name it needs room only; else it needs a load as well, and says so at once."""
    await grown(world, "m", 2)
    await world.control.traffic.set_alias("m", "prod", 2, world.actor)
    await restarted(world, 1000)

    lack = (
        "not loaded for lack of memory: m/2 needs 603 bytes (603 of weights and 0 private in each "
        "of 2 workers), 397 of the budget of 1000 are free: "
    )
    reason = world.control.status("m", 2)[1]
    assert reason.startswith(lack)
    assert reason.endswith(
        "; nothing has to be done but to make room: the route or an alias names it, so it comes "
        "back by itself as soon as an unload makes room, or at a start with room for it"
    )
    assert (await events(world, "waits_for_memory"))[-1].reason == reason
    async with world.client() as admin:
        plan = (await admin.post("/admin/v1/models/m/versions/2:plan")).json()
    assert (plan["state"], plan["state_reason"]) == ("FAILED", reason)

    await world.control.traffic.delete_alias("m", "prod", world.actor)

    reason = world.control.status("m", 2)[1]
    assert reason.startswith(lack)
    assert reason.endswith(
        "; no route and no alias names it, so it does not come back by itself: make room, then "
        "`ramrack load m 2`; a start with room for it brings it back as well"
    )
    assert world.fleet.targets[-1].catalog["m"][2].reason == reason


async def test_what_fails_otherwise_while_it_is_brought_back_is_failed(world):
    """Only a lack of memory lets a version wait."""
    await grown(world, "m", 3)
    await restarted(world, 2 * BYTES + 100)
    await world.unload("m", 2)
    world.fleet.refused["m", 3] = "a worker cannot open it"

    with pytest.raises(LoadFailed, match="cannot open"):
        await world.load("m", 3)

    assert world.control.status("m", 3) == ("FAILED", "a worker cannot open it")
    assert "ready" not in (await events(world, "load_failed"))[-1].before
    assert 3 not in world.control.model("m").loaded
    assert world.control.ledger.committed_bytes() == BYTES + 3


async def test_what_waits_can_be_unloaded_and_then_is_not_wanted_any_more(world):
    """It holds nothing, so nothing is measured, and no later start brings it back."""
    await grown(world, "m", 2)
    await restarted(world, 1000)

    await world.unload("m", 2)

    assert world.control.status("m", 2) == ("UNLOADED", "not loaded: load it to serve it")
    assert world.control.ledger.last_unload is None
    await restarted(world, 10 * BYTES)
    assert world.fleet.held == {("m", 1): True}


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


class FullDisk(UnsyncedFiles):
    """No byte more can be written."""

    def write(self, descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_start_on_a_full_disk_waits_for_memory_as_well(world):
    """That something waits need not be recorded to be so."""
    await grown(world, "m", 2)
    world.files = FullDisk()

    await restarted(world, 1000)

    assert world.fleet.held == {("m", 1): True}
    assert world.control.status("m", 2)[1].startswith("not loaded for lack of memory")
    world.files = UnsyncedFiles()
    await restarted(world, 10 * BYTES)
    assert world.fleet.held == {("m", 1): True, ("m", 2): True}


# The machine itself has no memory left, whatever the budget says.


async def test_what_a_worker_has_no_memory_for_waits_like_what_the_budget_refuses(world):
    """At a start, and again when it is loaded: it stays wanted, and no worker is left with it."""
    await grown(world, "m", 2)
    await world.control.traffic.set_route("m", RouteWish.whole(2), world.actor)

    await world.restart(lambda fleet: fleet.without_memory.add(("m", 2)))
    await world.control.restored()

    state, reason = world.control.status("m", 2)
    assert (state, world.fleet.held) == ("FAILED", {("m", 1): True})
    assert reason.startswith("not loaded for lack of memory: not enough memory to load it; ")
    assert world.control.ledger.committed_bytes() == BYTES + 3
    assert world.control.ledger.unreleased_bytes() == 0
    with pytest.raises(OutOfMemory):
        await world.load("m", 2)
    assert world.control.traffic.route("m").traffic == Traffic.whole(2)
    assert world.fleet.held == {("m", 1): True}

    world.fleet.without_memory.clear()
    await world.load("m", 2)
    assert world.fleet.held == {("m", 1): True, ("m", 2): True}


async def test_a_first_load_without_memory_in_a_worker_is_a_507(world, client):
    """Nothing wanted it before, so it is FAILED, and may be loaded again."""
    await grown(world, "m", 1)
    await world.push("m", b"two")
    world.fleet.without_memory.add(("m", 2))

    answer = await client.post("/admin/v1/models/m/versions/2:load?wait=20")

    assert (answer.status_code, answer.json()["error"]) == (507, "not enough memory to load it")
    assert world.control.status("m", 2) == ("FAILED", "not enough memory to load it")
    assert 2 not in world.control.model("m").loaded
    world.fleet.without_memory.clear()
    await world.load("m", 2)


# Over the budget: what workers measured is more than what was estimated.


async def test_what_turns_out_larger_than_estimated_serves_on_and_is_told(world, client, caplog):
    """The ledger says what is, an event names sizes and what an unload would give; nobody goes."""
    await grown(world, "m", 2)
    await world.control.traffic.set_alias("m", "prod", 1, world.actor)
    world.control.ledger.budget_bytes = 2000
    await world.push("m", b"big", b"b" * 100)
    world.fleet.private_bytes["m", 3] = 500

    await world.load("m", 3)

    memory = (await client.get("/admin/v1/memory")).json()
    assert (memory["committed_bytes"], memory["free_bytes"], memory["over_bytes"]) == (2309, 0, 309)
    assert world.fleet.held == {("m", n): True for n in (1, 2, 3)}
    (event,) = await events(world, "over_budget")
    assert (event.model, event.version, event.who) == ("m", 3, "server")
    assert event.reason == (
        "what is loaded takes 2309 bytes, 309 more than the budget of 2000; m/3 takes 500 more in "
        "each worker than was known: it serves on, and nothing more is loaded: unload m/3 (gives "
        "1103) or raise memory_budget"
    )
    assert event.after == {
        "committed_bytes": 2309, "budget_bytes": 2000, "over_bytes": 309,
        "would_evict": [{"model": "m", "version": 3, "frees_bytes": 1103}],
    }  # fmt: skip
    assert any("over the memory budget" in record.message for record in caplog.records)


async def over_by_106(world: World) -> None:
    """Load two versions, the second of which turns out to take 100 in each of 2 workers."""
    world.control.ledger.budget_bytes = 1300
    world.fleet.private_bytes["m", 2] = 100
    await grown(world, "m", 2)


async def test_nothing_is_admitted_while_the_sum_is_over_the_budget(world):
    """Not even what takes next to nothing; the advice frees what is over as well."""
    await over_by_106(world)
    await world.push("n", b"g", b"n" * 9)

    with pytest.raises(OverBudget, match=r"takes 106 more than the budget of 1300") as caught:
        await world.load("n", 1)

    assert caught.value.plan["fits_after_evicting"] is True
    assert caught.value.plan["would_evict"] == [{"model": "m", "version": 2, "frees_bytes": 803}]
    await world.unload("m", 2)
    await world.load("n", 1)


async def test_being_over_the_budget_is_told_once_and_again_when_it_grows(world):
    """As long as it grows no larger, it was said."""
    await over_by_106(world)
    assert len(await events(world, "over_budget")) == 1
    await world.push("n", b"g")
    for _ in range(2):
        with pytest.raises(OverBudget):
            await world.load("n", 1)
    assert len(await events(world, "over_budget")) == 1

    await world.unload("m", 2)
    world.fleet.private_bytes["m", 2] = 200
    await world.load("n", 1)
    with pytest.raises(OverBudget, match="needs 803 bytes"):
        await world.load("m", 2)


async def test_a_start_over_the_budget_keeps_routed_versions_and_lets_others_wait(world):
    """What is measured after the start puts the sum over it: the routed one stays READY."""
    await grown(world, "m", 1)
    await grown(world, "n", 2)
    await world.control.traffic.delete_route("n", world.actor)

    world.budget_bytes = 1300
    await world.restart(lambda fleet: fleet.private_bytes.update({("m", 1): 400}))
    await world.control.restored()

    assert world.fleet.held == {("m", 1): True}
    assert "takes 103 more than the budget of 1300" in world.control.status("n", 1)[1]
    assert len(await events(world, "over_budget")) == 1

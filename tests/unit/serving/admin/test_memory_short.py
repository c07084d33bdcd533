"""Lack of memory: what waits for it, and what can be done about it."""

from __future__ import annotations

import dataclasses

import pytest

from models.errors import LoadFailed, OutOfMemory
from registry.errors import Conflict, OverBudget
from registry.traffic import Share, Traffic
from registry.traffic_rules import RouteWish
from tests.disk_model import FullDisk, UnsyncedFiles
from tests.unit.serving.admin.memory_steps import BYTES, events, grown, restarted, settled

pytestmark = pytest.mark.timeout(30)


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

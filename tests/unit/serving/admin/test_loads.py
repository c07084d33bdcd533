"""Loads: two steps, what refuses them, what they need, and several at once."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from models.errors import LoadFailed
from registry.errors import Corrupt, OverBudget
from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH
from serving.errors import DeadlineExpired

pytestmark = pytest.mark.timeout(30)
whole = Traffic.whole


async def test_load_makes_a_version_ready_in_two_steps(world):
    """A version is mapped everywhere before it may answer anywhere."""
    await world.push("m", b"graph")
    await world.load("m", 1)

    steps = [[(v.version, v.is_serving) for v in target.versions] for target in world.fleet.targets]
    assert steps[-2:] == [[(1, False)], [(1, True)]]
    assert world.control.status("m", 1)[0] == "READY"


async def test_first_load_becomes_the_route_and_later_ones_do_not(world):
    """A later load never moves traffic."""
    await world.push_loaded("m", 2)

    assert world.fleet.targets[-1].routes == {"m": Traffic.whole(1)}
    assert world.control.traffic.route("m").previous is None


async def test_route_that_follows_latest_moves_with_a_load(world):
    """Following the latest is a choice, and then a load moves traffic."""
    await world.push_loaded("m", 1)
    await world.control.traffic.set_route("m", LATEST_WISH, world.actor)
    record = await world.push("m", b"second")
    await world.load("m", record.version)

    route = world.control.traffic.route("m")
    assert (route.traffic, route.previous, route.is_latest) == (whole(2), whole(1), True)


async def test_load_of_a_ready_version_has_ended_at_once(world):
    """Loading what is READY succeeds without work."""
    await world.push_loaded("m", 1)
    before = len(world.fleet.targets)

    operation = world.control.load("m", 1, world.actor)

    assert operation.state == "succeeded"
    assert (len(world.fleet.targets), len(world.inspector.calls)) == (before, 1)


async def test_c02_failed_load_leaves_everything_else_and_a_later_good_one_works(world):
    """A version that the inspection refuses is FAILED with the reason; nothing else changes."""
    await world.push_loaded("m", 1)
    bad = await world.push("m", b"bad")
    world.inspector.refused[bad.manifest.graph] = "not a graph"
    before = world.fleet.targets[-1]

    with pytest.raises(LoadFailed, match="not a graph"):
        await world.load("m", 2)

    after = world.fleet.targets[-1]
    assert (after.versions, after.routes) == (before.versions, before.routes)
    assert world.control.status("m", 2) == ("FAILED", "not a graph")
    good = await world.push("m", b"good")
    await world.load("m", good.version)
    assert world.control.status("m", 3)[0] == "READY"
    world.inspector.refused.clear()
    await world.load("m", 2)
    assert world.control.status("m", 2)[0] == "READY"


async def test_a_version_whose_answers_have_drifted_is_failed(world):
    """A version that answers its golden rows otherwise than when pushed does not serve."""
    record = await world.push("m", b"drifted")
    world.inspector.drifted[record.manifest.graph] = "golden row 1 is 2, was 1"

    with pytest.raises(LoadFailed, match="golden row 1"):
        await world.load("m", 1)

    assert world.control.status("m", 1) == ("FAILED", "golden row 1 is 2, was 1")
    assert not any(("m", 1) in target.versions for target in world.fleet.targets)


async def test_c02_version_that_fails_in_a_worker_is_taken_out_again(world):
    """A load that a worker refuses ends FAILED, and no worker is left with it."""
    await world.push_loaded("m", 1)
    await world.push("m", b"second")
    world.fleet.refused["m", 2] = "out of memory while warming up"

    with pytest.raises(LoadFailed, match="while warming up"):
        await world.load("m", 2)

    assert world.fleet.held == {("m", 1): True}
    assert world.control.status("m", 2) == ("FAILED", "out of memory while warming up")
    assert world.control.ledger.unreleased_bytes() == 0
    assert world.fleet.targets[-1].routes == {"m": Traffic.whole(1)}


async def test_c02_version_over_the_budget_is_refused_with_the_plan(world):
    """A load that the budget has no room for says what it needs and what is free."""
    world.control.ledger.budget_bytes = 1000
    await world.push("m", b"graph", b"w" * 1001)

    operation = world.control.load("m", 1, world.actor)
    with pytest.raises(OverBudget, match="needs at least 1006 bytes") as caught:
        await world.load("m", 1)
    assert operation.stage == "looking for room"

    assert caught.value.plan["free_bytes"] == 1000
    assert world.inspector.calls == []
    assert world.control.status("m", 1)[0] == "FAILED"


async def test_c02_inspection_that_outgrows_the_free_budget_is_refused_with_the_plan(world):
    """Where the limit of the inspection was the room left, the answer says how to make more."""
    world.control.ledger.budget_bytes = 1000
    await world.push("old", b"idle", b"w" * 100)
    await world.push("old", b"routed", b"w")
    await world.load("old", 2)
    await world.load("old", 1)
    await world.push("m", b"graph", b"v" * 10)
    world.inspector.outgrown.add("sha256:" + hashlib.sha256(b"graph").hexdigest())

    with pytest.raises(OverBudget, match=r"needs more than .*: unload old/1 or more") as caught:
        await world.load("m", 1)

    assert caught.value.plan["free_bytes"] < 1000
    assert caught.value.plan["fits"] is False
    assert world.control.status("m", 1)[0] == "FAILED"
    world.inspector.outgrown.clear()
    await world.load("m", 1)


async def test_an_inspection_that_outgrows_its_setting_names_the_setting(world):
    """More room would not help then: the reason says what would."""
    world.settings = replace(world.settings, inspect_memory=1 << 20)
    await world.restart()
    await world.push("m", b"graph")
    world.inspector.outgrown.add("sha256:" + hashlib.sha256(b"graph").hexdigest())

    with pytest.raises(LoadFailed, match="needs more: raise the setting inspect_memory"):
        await world.load("m", 1)

    assert world.inspector.limits == [1 << 20]


async def test_private_memory_counts_for_each_worker(world):
    """What the inspection finds private is reserved once a worker."""
    world.control.ledger.budget_bytes = 1000
    world.inspector.private_bytes = 501
    await world.push("m", b"graph")

    with pytest.raises(OverBudget, match="needs 1007 bytes"):
        await world.load("m", 1)


async def test_shared_weights_are_reserved_once(world):
    """Two versions with the same tensor reserve its bytes once."""
    world.control.ledger.budget_bytes = 1500
    await world.push("m", b"one", b"w" * 1000)
    await world.push("m", b"two", b"w" * 1000, b"own")
    await world.load("m", 1)
    await world.load("m", 2)

    memory = world.control.ledger.versions()["m", 2]
    assert world.control.ledger.committed_bytes() == 1009
    assert (memory.unique_bytes, memory.shared_bytes) == (3, 1000)


async def test_measured_private_memory_replaces_a_smaller_guess(world):
    """What workers measured is what the ledger counts from then on."""
    world.inspector.private_bytes = 10
    world.fleet.private_bytes["m", 1] = 400
    await world.push_loaded("m", 1)

    graph_bytes = world.control.writer.record("m", 1).disk_bytes
    assert world.control.ledger.committed_bytes() == graph_bytes + 800


async def test_damaged_object_is_found_before_anything_is_loaded(world):
    """A load compares the objects with their digests first."""
    record = await world.push("m", b"graph", b"w" * 100)
    path = world.store.objects_dir / record.manifest.tensors[0].digest.removeprefix("sha256:")
    path.chmod(0o644)
    path.write_bytes(b"v" * 100)

    with pytest.raises(Corrupt):
        await world.load("m", 1)

    assert world.inspector.calls == []
    assert world.control.status("m", 1)[0] == "FAILED"


async def test_workers_that_do_not_answer_fail_the_load(world):
    """A load ends when the time is over, FAILED, with the reason."""
    await world.push("m", b"graph")
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match="600 s"):
        await world.load("m", 1)

    assert world.control.status("m", 1)[0] == "FAILED"
    assert world.fleet.held == {}
    world.fleet.is_stuck = False
    await world.load("m", 1)
    assert world.control.status("m", 1)[0] == "READY"
    assert world.control.ledger.unreleased_bytes() == 0


async def test_c08_equal_loads_at_once_share_one_operation(world):
    """Eight callers that load one version get one operation and one inspection."""
    await world.push("m", b"graph")
    operations = [world.control.load("m", 1, world.actor) for _ in range(8)]
    await asyncio.gather(*(operation.wait() for operation in operations))

    assert len({operation.id for operation in operations}) == 1
    assert len(world.inspector.calls) == 1


async def test_c08_last_call_decides(world):
    """Load, unload, load in a row end in the order they came in."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")
    world.inspector.gate.clear()
    first = world.control.load("m", 2, world.actor)
    second = world.control.unload("m", 2, world.actor)
    third = world.control.load("m", 2, world.actor)
    assert len({first.id, second.id, third.id}) == 3
    world.inspector.gate.set()
    await third.wait()

    assert [op.state for op in (first, second, third)] == ["succeeded"] * 3
    assert world.control.status("m", 2)[0] == "READY"
    last = world.control.unload("m", 2, world.actor)
    await last.wait()
    assert world.control.status("m", 2)[0] == "UNLOADED"


@pytest.mark.slow
async def test_c08_many_callers_end_in_a_state_that_is_true(world):
    """64 callers that load and unload one version all get an answer; the last one holds."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")

    async def call(number: int) -> str:
        begin = world.control.load if number % 2 else world.control.unload
        operation = begin("m", 2, world.actor)
        await operation.wait()
        return operation.state

    states = await asyncio.gather(*(call(number) for number in range(64)))

    assert set(states) == {"succeeded"}
    assert world.control.status("m", 2)[0] == "READY"
    assert world.fleet.held == {("m", 1): True, ("m", 2): True}


async def test_loads_of_different_versions_go_one_at_a_time(world):
    """The second load waits for the first, and says so."""
    await world.push("m", b"one")
    await world.push("n", b"two")
    world.inspector.gate.clear()
    first = world.control.load("m", 1, world.actor)
    await asyncio.to_thread(world.inspector.entered.wait, 20)
    second = world.control.load("n", 1, world.actor)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert second.stage == "waiting for another load"
    assert world.control.status("n", 1)[0] == "LOADING"
    assert len(world.inspector.calls) == 1
    world.inspector.gate.set()
    await first.wait()
    await second.wait()
    assert second.state == "succeeded"


async def test_plan_changes_nothing(world):
    """A plan says what a load would take at least, before anything measured the private memory."""
    await world.push("m", b"one", b"w" * 100)

    plan = world.control.plan("m", 1)

    assert (plan.needs_bytes, plan.fits, plan.workers) == (103, True, 2)
    assert (plan.private_bytes_per_worker, plan.is_estimated) == (None, True)
    assert world.control.status("m", 1)[0] == "UNLOADED"


async def test_plan_knows_private_memory_from_an_earlier_load(world):
    """What was measured once counts in every later plan."""
    world.inspector.private_bytes = 10
    await world.push_loaded("m", 2)
    await world.unload("m", 2)

    plan = world.control.plan("m", 2)

    assert (plan.private_bytes_per_worker, plan.needs_bytes) == (10, 29)
    assert (plan.is_estimated, plan.reason) == (False, "")


async def test_plan_of_what_is_loaded_needs_nothing_more(world):
    """Also after a restart, where only the state knows what the inspection measured."""
    world.inspector.private_bytes = 10
    await world.push_loaded("m", 1)
    await world.restart()
    await world.control.restored()

    plan = world.control.plan("m", 1)

    assert (plan.private_bytes_per_worker, plan.needs_bytes) == (10, 0)


async def test_inspection_gets_what_the_weights_leave(world):
    """The child may take as much private memory as the budget has beside graph and weights."""
    world.control.ledger.budget_bytes = 1 << 30
    await world.push("m", b"one", b"w" * 600)
    await world.load("m", 1)

    assert world.inspector.limits == [(1 << 30) - 603]


async def test_inspection_finds_out_what_a_tight_budget_cannot_hold(world):
    """Opening a graph takes more than serving it: what was measured is what the budget is asked."""
    world.control.ledger.budget_bytes = 1000
    await world.push("m", b"one", b"w" * 600)
    await world.load("m", 1)

    assert world.inspector.limits == [(64 << 20) + 4 * len(b"one")]

"""The control plane: loads, failures, routes, restarts, quarantine."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from dataclasses import replace

import pytest

from models.errors import LoadFailed
from registry.errors import Conflict, Corrupt, NotFound, OverBudget, StoreFull
from registry.traffic import Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from serving.errors import DeadlineExpired
from tests.disk_model import ModelDisk, UnsyncedFiles
from tests.unit.serving.admin.conftest import QUIET, World

pytestmark = pytest.mark.timeout(30)
to = RouteWish.whole
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


async def test_unload_of_what_is_named_is_refused_at_once(world):
    """Routed, previous and aliased versions cannot be unloaded; the refusal says why."""
    await world.push_loaded("m", 3)
    await world.control.traffic.set_route("m", to(2), world.actor)
    await world.control.traffic.set_alias("m", "prod", 3, world.actor)

    for version, why in ((1, "rollback"), (2, "the route"), (3, "alias 'prod'")):
        with pytest.raises(Conflict, match=why):
            world.control.unload("m", version, world.actor)


async def test_refusals_name_the_model_and_the_way_out(world):
    """Whatever stands in the way, the message has the call and the command that clear it."""
    await world.push_loaded("m", 3)
    control, traffic, actor = world.control, world.control.traffic, world.actor
    await traffic.set_route("m", to(2), actor)
    await traffic.set_alias("m", "prod", 3, actor)
    route = ["DELETE /admin/v1/models/m/route", "`ramrack route m --delete`"]
    alias = ["DELETE /admin/v1/models/m/aliases/prod", "`ramrack alias m prod --delete`"]
    loaded = ["POST /admin/v1/models/m/versions/3:unload", "`ramrack unload m 3`"]

    async def refusal(call):
        with pytest.raises(Conflict) as caught:
            await call()
        return str(caught.value)

    async def unload(version):
        control.unload("m", version, actor)

    ways = {
        await refusal(lambda: unload(1)): ["m/1", "third version", *route],
        await refusal(lambda: unload(2)): ["m/2", "another version", *route],
        await refusal(lambda: unload(3)): ["m/3", *alias],
        await refusal(lambda: control.delete("m", 3, actor)): ["m/3", *alias, *loaded],
        await refusal(lambda: control.traffic.rollback("m", 3, actor)): [
            "m cannot",
            "`ramrack route m",
        ],
        await refusal(lambda: control.traffic.set_route("m", to(1), actor, if_match='"x"')): [
            "m: If-Match"
        ],
    }
    await control.traffic.delete_route("m", actor)
    await control.traffic.set_route("m", to(2), actor)
    ways[await refusal(lambda: control.traffic.rollback("m", None, actor))] = [
        "m cannot be rolled back", "PUT /admin/v1/models/m/route", "`ramrack route m VERSION`",
    ]  # fmt: skip
    for message, words in ways.items():
        assert [word for word in words if word not in message] == [], message


async def test_c10_unload_ends_when_the_workers_gave_it_back(world):
    """An unload is under way, and its memory reserved, until every worker reported it gone."""
    await world.push_loaded("m", 1)
    record = await world.push("m", b"two", b"w" * 100)
    await world.load("m", record.version)
    world.fleet.gate.clear()
    world.fleet.waiting.clear()

    operation = world.control.unload("m", 2, world.actor)
    await world.fleet.waiting.wait()

    assert operation.is_running
    assert world.control.status("m", 2)[0] == "DRAINING"
    assert world.control.ledger.unreleased_bytes() == 103
    world.fleet.gate.set()
    await operation.wait()
    assert (operation.state, operation.progress) == ("succeeded", 1.0)
    assert world.control.status("m", 2)[0] == "UNLOADED"
    assert world.control.ledger.committed_bytes() == len(b"m graph 0")


async def test_unload_of_a_failed_version_forgets_the_failure(world):
    """A FAILED version becomes UNLOADED."""
    bad = await world.push("m", b"bad")
    world.inspector.refused[bad.manifest.graph] = "no"
    with pytest.raises(LoadFailed):
        await world.load("m", 1)

    await world.unload("m", 1)

    assert world.control.status("m", 1)[0] == "UNLOADED"


async def test_unload_of_a_failed_version_that_an_alias_names_is_refused_at_once(world):
    """No operation begins, and the alias names what it named."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_alias("m", "other", 2, world.actor)
    await world.control.loads.fail(("m", 2), "damaged", "damaged", world.actor)

    with pytest.raises(Conflict, match="m/2 cannot be unloaded: alias 'other' names it"):
        world.control.unload("m", 2, world.actor)

    assert world.control.status("m", 2) == ("FAILED", "damaged")


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


async def test_rollback_goes_back_and_forth_in_one_call(world):
    """Without a number a rollback goes to the version that the route came from."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor)

    assert (await world.control.traffic.rollback("m", None, world.actor)).traffic == whole(1)
    assert (await world.control.traffic.rollback("m", None, world.actor)).traffic == whole(2)
    assert [c.traffic for c in world.control.traffic.route("m").history] == [
        whole(v) for v in (1, 2, 1, 2)
    ]


async def test_rollback_loads_what_it_goes_to(world):
    """A version of the history that is not loaded any more is loaded first."""
    await world.push_loaded("m", 3)
    await world.control.traffic.set_route("m", to(2), world.actor)
    await world.control.traffic.set_route("m", to(3), world.actor)
    await world.unload("m", 1)

    route = await world.control.traffic.rollback("m", 1, world.actor)

    assert (route.traffic, route.previous) == (whole(1), whole(3))
    assert world.control.status("m", 1)[0] == "READY"


async def test_rollback_to_where_the_route_never_was_is_refused(world):
    """A rollback goes back; new versions are routed to."""
    await world.push_loaded("m", 2)

    with pytest.raises(Conflict, match="to version 2"):
        await world.control.traffic.rollback("m", 2, world.actor)
    with pytest.raises(Conflict, match="no version before 1"):
        await world.control.traffic.rollback("m", None, world.actor)


async def test_route_and_alias_refuse_what_is_not_ready(world):
    """Only READY versions can be named."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")

    with pytest.raises(Conflict, match="not loaded"):
        await world.control.traffic.set_route("m", to(2), world.actor)
    with pytest.raises(Conflict, match="not loaded"):
        await world.control.traffic.set_alias("m", "prod", 2, world.actor)
    with pytest.raises(NotFound):
        await world.control.traffic.set_route("m", to(9), world.actor)


async def test_if_match_refuses_a_change_of_what_changed_meanwhile(world):
    """A guarded change happens only on what the caller saw."""
    await world.push_loaded("m", 2)
    etag = world.control.traffic.route("m").etag
    await world.control.traffic.set_route("m", to(2), world.actor, if_match=etag)

    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.set_route("m", to(1), world.actor, if_match=etag)
    alias, _ = await world.control.traffic.set_alias("m", "a", 1, world.actor)
    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.delete_alias("m", "a", world.actor, if_match='"0"')
    await world.control.traffic.delete_alias("m", "a", world.actor, if_match=alias.etag)


async def test_every_change_is_an_event_with_before_and_after(world):
    """Events say what changed, who wanted it and why."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_route("m", to(2), world.actor, "better")
    await world.control.traffic.set_alias("m", "prod", 2, world.actor)
    await world.control.traffic.delete_alias("m", "prod", world.actor)
    await world.control.traffic.rollback("m", None, world.actor)
    await world.control.traffic.delete_route("m", world.actor)
    await world.unload("m", 1)
    await world.control.delete("m", 1, world.actor)
    await world.control.gc(world.actor)
    events = await world.control.events(0, None, 100)

    assert [event.kind for event in events] == [
        "publish", "load", "publish", "load", "route", "alias", "alias_deleted", "rollback",
        "route_deleted", "unload", "delete", "gc",
    ]  # fmt: skip
    assert [event.seq for event in events] == list(range(1, 13))
    route = events[4]
    assert (route.who, route.address, route.reason) == ("tester", "127.0.0.1", "better")
    one, two = whole(1).to_json(), whole(2).to_json()
    assert route.before == {"route": {**one, "latest": False, "previous": None}}
    assert route.after == {"route": {**two, "latest": False, "previous": one}}


async def test_what_changes_nothing_is_no_event(world):
    """Setting what is set already neither records nor publishes anything."""
    await world.push_loaded("m", 1)
    before = (len(world.fleet.targets), world.store.events.last_seq)

    await world.control.traffic.set_route("m", to(1), world.actor)

    assert (len(world.fleet.targets), world.store.events.last_seq) == before


async def test_publishing_tells_the_workers_of_the_version(world):
    """A new version is known to the workers, so that they can say that it is not loaded."""
    await world.push("m", b"graph")

    entry = world.fleet.targets[-1].catalog["m"][1]
    assert (entry.state, entry.signature["inputs"][0]["name"]) == ("UNLOADED", "x")


async def test_delete_is_refused_while_loaded_or_loading(world):
    """Only a version that nothing uses can go."""
    await world.push_loaded("m", 2)
    with pytest.raises(Conflict, match="loaded"):
        await world.control.delete("m", 2, world.actor)
    world.inspector.gate.clear()
    await world.push("m", b"third")
    operation = world.control.load("m", 3, world.actor)
    with pytest.raises(Conflict, match="under way"):
        await world.control.delete("m", 3, world.actor)
    world.inspector.gate.set()
    await operation.wait()


async def test_deleted_version_is_gone_and_its_number_not_reused(world):
    """C07: a number is given once."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two")
    await world.control.delete("m", 2, world.actor)

    assert 2 not in world.fleet.targets[-1].catalog["m"]
    assert (await world.push("m", b"two")).version == 3


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


class FullDisk(UnsyncedFiles):
    """No byte more can be written."""

    def write(self, descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")


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


async def test_what_most_clients_ask_for_is_first_in_the_target(world):
    """Routed, aliased, what a rollback goes to, others; of each the small ones come first."""
    for version in (1, 2, 3, 4, 5):
        await world.push("m", bytes([version]), bytes([version]) * (60 - version))
        await world.load("m", version)
    await world.control.traffic.set_route("m", to(4), world.actor)
    await world.control.traffic.set_alias("m", "next", 3, world.actor)

    assert [v.version for v in world.fleet.targets[-1].versions] == [4, 3, 1, 5, 2]


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


async def test_plan_changes_nothing(world):
    """A plan says what a load would take at least, before anything measured the private memory."""
    await world.push("m", b"one", b"w" * 100)

    plan = world.control.plan("m", 1)

    assert (plan.needs_bytes, plan.fits, plan.workers) == (103, True, 2)
    assert (plan.private_bytes_per_worker, plan.is_estimated) == (None, True)
    assert world.control.status("m", 1)[0] == "UNLOADED"


async def test_cancelled_caller_does_not_cut_a_change_short(world):
    """A change that has begun is persisted, recorded and published, whoever waits for it."""
    await world.push_loaded("m", 2)
    task = asyncio.create_task(world.control.traffic.set_route("m", to(2), world.actor))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.control.writer.close()

    assert world.fleet.targets[-1].routes == {"m": Traffic.whole(2)}
    assert world.control.traffic.route("m").traffic == whole(2)


async def test_unload_that_cannot_be_written_leaves_the_version_counted_once(make_world, tmp_path):
    """A full disk refuses the unload; version and ledger are as before."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 1)
    await world.push("m", b"two", b"w" * 100)
    await world.load("m", 2)
    disk.fail_in(1, errno.ENOSPC)

    with pytest.raises(StoreFull):
        await world.unload("m", 2)

    ledger = world.control.ledger
    assert (ledger.committed_bytes(), ledger.unreleased_bytes()) == (112, 0)
    assert world.control.status("m", 2)[0] == "READY"
    await world.unload("m", 2)
    assert ledger.committed_bytes() == len(b"m graph 0")
    await world.stop()


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

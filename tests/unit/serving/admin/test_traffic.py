"""Splits, shadows, releases and rollbacks: what the control plane does with traffic."""

from __future__ import annotations

import asyncio
import dataclasses
import errno

import pytest

from models.errors import LoadFailed
from models.signature import Signature, TensorSpec
from registry.errors import Conflict, NotFound, StoreFull
from registry.plan import Load, plan_routes
from registry.traffic import Share, Traffic
from registry.traffic_rules import LATEST_WISH, RouteWish
from serving.control.plan_runner import PlanRunner
from serving.control.traffic_control import GuardedWish
from serving.errors import DeadlineExpired
from tests.disk_model import ModelDisk
from tests.unit.serving.admin.conftest import SIGNATURE

pytestmark = pytest.mark.timeout(30)
whole = Traffic.whole


def split(*pairs: tuple[int, int], shadow: tuple[int, ...] = ()) -> Traffic:
    return Traffic(tuple(Share(*pair) for pair in pairs), shadow)


CANARY = split((1, 90), (2, 10), shadow=(3,))


async def set_route(world, traffic, **more):
    return await world.control.traffic.set_route("m", RouteWish(traffic), world.actor, **more)


def generation(world) -> int:
    return world.control.writer.state.generation


async def test_split_and_shadows_reach_the_workers(world):
    """The published target has the weights and the shadows, and they are one change."""
    await world.push_loaded("m", 3)
    before = generation(world)

    route = await set_route(world, CANARY)

    assert world.fleet.targets[-1].routes == {"m": CANARY}
    assert (route.traffic, route.previous) == (CANARY, whole(1))
    assert generation(world) == before + 1 == world.fleet.taken_generation
    assert world.control.writer.swaps == 1


async def test_change_of_shadows_alone_is_no_swap(world):
    """Swaps count moves of answers."""
    await world.push_loaded("m", 2)

    await set_route(world, split((1, 100), shadow=(2,)))

    assert world.control.writer.swaps == 0


async def test_rollback_restores_split_and_shadows_in_one_call(world):
    """The whole former traffic is kept READY and comes back as one generation."""
    await world.push_loaded("m", 4)
    await set_route(world, CANARY)
    await set_route(world, whole(4))
    before = generation(world)

    for version in (1, 2, 3):
        with pytest.raises(Conflict, match="rollback"):
            world.control.unload("m", version, world.actor)
        with pytest.raises(Conflict, match="rollback"):
            await world.control.delete("m", version, world.actor)
    route = await world.control.traffic.rollback("m", None, world.actor)

    assert (route.traffic, route.previous) == (CANARY, whole(4))
    assert generation(world) == before + 1


async def test_every_part_of_a_route_holds_its_version(world):
    """Split members and shadows cannot be unloaded, and the refusal says which they are."""
    await world.push_loaded("m", 3)
    await set_route(world, CANARY)

    for version, why in ((1, "sends requests"), (2, "sends requests"), (3, "shadows the route")):
        with pytest.raises(Conflict, match=why):
            world.control.unload("m", version, world.actor)


async def test_previous_is_free_after_the_next_change(world):
    """What a rollback does not go back to any more can be unloaded."""
    await world.push_loaded("m", 4)
    await set_route(world, CANARY)
    await set_route(world, whole(4))
    await set_route(world, whole(1))

    for version in (2, 3):
        await world.unload("m", version)
    with pytest.raises(Conflict):
        world.control.unload("m", 4, world.actor)


async def test_route_over_what_is_not_ready_is_refused_by_part(world):
    """Split members and shadows must be READY; unknown ones are not found."""
    await world.push_loaded("m", 1)
    await world.push("m", b"second")
    before = (generation(world), world.store.events.last_seq)

    for traffic, what in (
        (split((1, 90), (2, 10)), "the route cannot name m/2: it is not loaded"),
        (split((1, 100), shadow=(2,)), "a shadow of the route cannot name m/2: it is not loaded"),
    ):
        with pytest.raises(Conflict, match=what):
            await set_route(world, traffic)
    with pytest.raises(NotFound, match="no version 9"):
        await set_route(world, split((1, 90), (9, 10)))
    assert (generation(world), world.store.events.last_seq) == before


# Signatures


def table(*columns: str, labels: tuple[str, ...] | None = None) -> Signature:
    matrix = TensorSpec("x", "FP32", (-1, len(columns)), columns=columns)
    return Signature((matrix,), (TensorSpec("y", "FP32", (-1, 2), labels=labels),))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (table("age", "sum"), table("age", "sum", "hour"), "'hour' is in version 2 only"),
        (table("age", "sum"), table("sum", "age"), "column 0 is 'age' in version 1 and 'sum' in"),
        (table("a", labels=("no",)), table("a", labels=("yes",)), "label 'no' is in version 1"),
        (table("a", labels=("no",)), table("a"), "labels is ['no'] in version 1 and not set in"),
        (SIGNATURE, table("age", "sum"), "columns is not set in version 1"),
    ],
)
async def test_versions_whose_signatures_differ_are_not_mixed(world, one, other, says):
    """A 409 names the column; who wants it all the same says so; whole moves are free."""
    for content, signature in ((b"one", one), (b"two", other)):
        record = await world.push("m", content)
        world.inspector.signatures[record.manifest.graph] = signature
        await world.load("m", record.version)
    before = generation(world)

    for traffic in (split((1, 50), (2, 50)), split((1, 100), shadow=(2,))):
        with pytest.raises(Conflict, match="versions 1 and 2 cannot share requests") as caught:
            await set_route(world, traffic)
        assert says in str(caught.value)
        assert "allow_incompatible" in str(caught.value)
    assert generation(world) == before

    wish = RouteWish(split((1, 50), (2, 50)), allow_incompatible=True)
    await world.control.traffic.set_route("m", wish, world.actor)
    await set_route(world, whole(2))
    route = await world.control.traffic.rollback("m", None, world.actor)
    assert route.traffic == wish.traffic


def test_every_field_of_a_tensor_counts():
    """A field that is added to the signature later is compared as well."""
    from models.signature import difference

    spec = TensorSpec("x", "FP32", (-1, 2))
    other = {
        "name": "z", "datatype": "FP64", "shape": (-1, 3), "columns": ("a", "b"),
        "labels": ("a", "b"), "categories": ("a",), "missing": "", "method": "predict",
    }  # fmt: skip
    assert set(other) == {field.name for field in dataclasses.fields(TensorSpec)}
    one = Signature((spec,), (spec,))
    assert difference(one, one, ("a", "b")) == ""
    for key, value in other.items():
        changed = dataclasses.replace(spec, **{key: value})
        assert "input" in difference(one, Signature((changed,), (spec,)), ("a", "b")), key
        assert "output" in difference(one, Signature((spec,), (changed,)), ("a", "b")), key
    two = (spec, dataclasses.replace(spec, name="z"))
    swapped = Signature(two[::-1], (spec,))
    assert "order of inputs" in difference(Signature(two, (spec,)), swapped, ("a", "b"))


# Failures


async def settle():
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.mark.parametrize(
    ("version", "after", "previous"),
    [(3, split((1, 90), (2, 10)), whole(4)), (2, whole(4), None), (1, whole(4), None),
     (4, CANARY, None)],
)  # fmt: skip
async def test_quarantine_moves_the_route_to_what_is_known_to_work(world, version, after, previous):
    """A shadow drops out; a split member takes the route back; a previous one is forgotten."""
    await world.push_loaded("m", 4)
    await set_route(world, whole(4))
    await set_route(world, CANARY)

    world.fleet.quarantine("m", version, "three deaths")
    await settle()

    route = world.control.traffic.route("m")
    assert (route.traffic, route.previous) == (after, previous)
    assert world.fleet.targets[-1].routes == {"m": after}
    if after != CANARY:
        assert route.history[-1].reason == f"version {version} failed: three deaths"


async def test_quarantine_without_a_way_back_leaves_it_to_the_others(world):
    """The share of the failed one goes to the rest of the split."""
    await world.push_loaded("m", 3)
    await set_route(world, split((1, 60), (2, 30), (3, 10)))
    world.fleet.quarantine("m", 1, "three deaths")
    await settle()

    route = world.control.traffic.route("m")
    assert (route.traffic, route.previous) == (split((2, 75), (3, 25)), None)


# Rollback with loads


async def test_rollback_that_cannot_load_changes_nothing(world):
    """The route stays, and nothing that the rollback loaded stays."""
    await world.push_loaded("m", 3)
    await set_route(world, whole(2))
    await set_route(world, whole(3))
    await world.unload("m", 1)
    world.fleet.refused["m", 1] = "no memory"
    before = world.fleet.targets[-1]

    with pytest.raises(LoadFailed, match="no memory"):
        await world.control.traffic.rollback("m", 1, world.actor)

    after = world.fleet.targets[-1]
    assert (after.routes, after.versions) == (before.routes, before.versions)


async def test_what_a_rollback_loaded_goes_again_if_it_cannot_switch(world):
    """A stale ETag is found before anything is loaded, a full disk after it: nothing is left."""
    await world.push_loaded("m", 3)
    await set_route(world, whole(2))
    await set_route(world, whole(3))
    await world.unload("m", 1)
    etag = world.control.traffic.route("m").etag
    calls = len(world.inspector.calls)
    with pytest.raises(Conflict, match="If-Match"):
        await world.control.traffic.rollback("m", 1, world.actor, if_match='"0"')
    assert len(world.inspector.calls) == calls

    world.fleet.gate.clear()
    world.fleet.waiting.clear()
    rollback = asyncio.create_task(
        world.control.traffic.rollback("m", 1, world.actor, if_match=etag)
    )
    await world.fleet.waiting.wait()
    await set_route(world, whole(2))
    world.fleet.gate.set()
    with pytest.raises(Conflict, match="If-Match"):
        await rollback

    assert world.control.status("m", 1)[0] == "UNLOADED"
    assert world.control.traffic.route("m").traffic == whole(2)


async def test_loads_before_one_that_takes_too_long_are_undone(world):
    """All of what a plan needs is loaded, or nothing of it stays."""
    await world.push_loaded("m", 1)
    for content in (b"two", b"three"):
        await world.push("m", content)
    control = world.control

    def load(model, version, actor, reason):
        world.fleet.is_stuck = version == 3
        return control.load(model, version, actor, reason)

    def unload(*arguments):
        world.fleet.is_stuck = False
        return control.unload(*arguments)

    runner = PlanRunner(control.writer, load, unload)
    switch = plan_routes({"m": RouteWish(split((2, 50), (3, 50)))})
    with pytest.raises(DeadlineExpired, match="600 s"):
        await runner.run((Load("m", 2), Load("m", 3), *switch), world.actor, "")

    assert [control.status("m", v)[0] for v in (1, 2, 3)] == ["READY", "UNLOADED", "FAILED"]
    assert world.fleet.targets[-1].routes == {"m": whole(1)}


# Changes that workers do not take


@pytest.mark.parametrize("kind", ["route", "alias", "alias_deleted", "settings", "route_deleted"])
async def test_change_that_no_worker_took_is_taken_back(world, kind):
    """The former state is a new generation, the reason is in the events, the caller hears."""
    await world.push_loaded("m", 2)
    control = world.control.traffic
    await control.set_alias("m", "old", 1, world.actor)
    before, first = world.control.model("m"), generation(world)
    calls = {
        "route": lambda: set_route(world, whole(2)),
        "alias": lambda: control.set_alias("m", "old", 2, world.actor),
        "alias_deleted": lambda: control.delete_alias("m", "old", world.actor),
        "settings": lambda: control.set_settings("m", {"priority": 3}, world.actor),
        "route_deleted": lambda: control.delete_route("m", world.actor),
    }
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match=r"slots \[0\].*former state is in force again"):
        await calls[kind]()

    after = world.control.model("m")
    assert (after.route.traffic, after.route.previous) == (whole(1), None)
    assert {a: e.version for a, e in after.aliases.items()} == {"old": 1}
    assert after.settings == before.settings
    assert [target.generation for target in world.fleet.targets[-2:]] == [first + 1, first + 2]
    assert world.fleet.targets[-1].routes == {"m": whole(1)}
    made, undone = world.store.events.read()[-2:]
    assert (made.kind, undone.kind, undone.who) == (kind, "taken_back", "server")
    assert "slots [0]" in undone.reason
    world.fleet.is_stuck = False
    await calls[kind]()


async def test_taking_back_leaves_what_someone_else_changed(world):
    """Only the change that failed is undone."""
    await world.push_loaded("m", 3)
    writer = world.control.writer

    async def meanwhile():
        world.fleet.before_time_out = None
        world.fleet.is_stuck = False
        await set_route(world, whole(3))

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired, match="changed again meanwhile"):
        await set_route(world, whole(2))

    assert writer.state.model("m").route.traffic == whole(3)


async def test_route_is_not_taken_back_to_what_cannot_answer(world):
    """The version that the route came from failed meanwhile: the new one stays."""
    await world.push_loaded("m", 2)

    async def meanwhile():
        world.fleet.before_time_out = None
        await world.control.loads.take_out(("m", 1), "damaged", "damaged", world.actor)

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired):
        await set_route(world, whole(2))

    assert world.control.traffic.route("m").traffic == whole(2)


async def test_rollback_that_no_worker_took_is_kept(world):
    """The way back is not undone: what it leaves may be what keeps the worker."""
    await world.push_loaded("m", 2)
    await set_route(world, whole(2))
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match="is kept and will be taken"):
        await world.control.traffic.rollback("m", None, world.actor)

    assert world.control.traffic.route("m").traffic == whole(1)
    assert world.fleet.targets[-1].routes == {"m": whole(1)}


async def test_change_that_cannot_be_taken_back_says_so(make_world, tmp_path):
    """A full disk leaves the change in force, and the caller knows."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)

    async def meanwhile():
        disk.fail_in(1, errno.ENOSPC)

    world.fleet.is_stuck, world.fleet.before_time_out = True, meanwhile
    with pytest.raises(DeadlineExpired, match="could not be taken back"):
        await set_route(world, whole(2))

    assert world.control.traffic.route("m").traffic == whole(2)
    await world.stop()


# Releases


async def release(world, **wishes):
    return await world.control.traffic.release(
        {name: GuardedWish(*item) if isinstance(item, tuple) else GuardedWish(item)
         for name, item in wishes.items()},
        world.actor, "both",
    )  # fmt: skip


async def test_release_is_one_generation_with_an_event_for_each_model(world):
    """Workers never see one of the routes without the other."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    before, first = len(world.fleet.targets), generation(world)

    routes = await release(world, m=RouteWish.whole(2), n=LATEST_WISH)

    assert (len(world.fleet.targets), generation(world)) == (before + 1, first + 1)
    assert world.fleet.targets[-1].routes == {"m": whole(2), "n": whole(2)}
    assert [routes[name].is_latest for name in "mn"] == [False, True]
    events = world.store.events.read()[-2:]
    assert [(e.kind, e.model, e.reason) for e in events] == [
        ("release", "m", "both"), ("release", "n", "both"),
    ]  # fmt: skip
    assert [f'"{event.seq}"' for event in events] == [routes[name].etag for name in "mn"]


async def test_release_happens_as_a_whole_or_not_at_all(world):
    """One route that cannot be refuses all of them, and nothing was written."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 1)
    await world.push("n", b"not loaded")
    before = (generation(world), world.store.events.last_seq, len(world.fleet.targets))

    good = RouteWish.whole(2)
    for other, error, says in (
        (RouteWish.whole(2), Conflict, "n/2: it is not loaded"),
        (RouteWish.whole(7), NotFound, "no version 7"),
        ((RouteWish.whole(1), '"77"'), Conflict, "n: If-Match"),
    ):
        with pytest.raises(error, match=says):
            await release(world, m=good, n=other)
    with pytest.raises(NotFound, match=r"model .unknown. is not known: there are m, n"):
        await release(world, m=good, unknown=good)

    assert (generation(world), world.store.events.last_seq, len(world.fleet.targets)) == before


async def test_a_model_without_a_route_says_how_to_get_one(world):
    """READY versions are to be routed to, for a load of one changes nothing; else one is loaded."""
    await world.push_loaded("m", 2)
    control = world.control.traffic
    await control.delete_route("m", world.actor)
    with pytest.raises(NotFound, match=r"READY: 2, 1\).*`ramrack route m 2`"):
        control.route("m")
    await world.push("n", b"a graph")
    with pytest.raises(NotFound, match="no version of it is READY: load one"):
        control.route("n")


async def test_release_that_no_worker_took_is_taken_back_whole(world):
    """All models go back in one generation."""
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    world.fleet.is_stuck = True

    with pytest.raises(DeadlineExpired, match="release of m, release of n"):
        await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))

    targets = [target.routes for target in world.fleet.targets[-2:]]
    assert targets == [{"m": whole(2), "n": whole(2)}, {"m": whole(1), "n": whole(1)}]


async def test_events_of_a_release_survive_a_crash_together(make_world, tmp_path):
    """The second event, whose append failed, is completed at the next start."""
    disk = ModelDisk(tmp_path / "store")
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    world.store.write_document("probe", {})  # the first writes the mark that there is one, too
    before = disk.steps
    world.store.write_document("probe", {})
    document_steps = disk.steps - before
    before = disk.steps
    world.store.events.append("probe")
    event_steps = disk.steps - before

    disk.fail_in(document_steps + event_steps + 1, errno.EIO)
    await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))
    assert [e.model for e in world.store.events.read() if e.kind == "release"] == ["m"]
    await world.stop()

    again = make_world(tmp_path / "store")
    await again.start()
    events = [e for e in again.store.events.read() if e.kind == "release"]
    assert [e.model for e in events] == ["m", "n"]
    assert [again.control.traffic.route(name).traffic for name in "mn"] == [whole(2)] * 2
    await again.stop()


async def test_release_that_cannot_be_written_is_no_release(make_world, tmp_path):
    """A full disk refuses it as a whole."""
    disk = ModelDisk(tmp_path / "store")
    disk.sets_aside = False
    world = make_world(tmp_path / "store", disk)
    await world.start()
    await world.push_loaded("m", 2)
    await world.push_loaded("n", 2)
    before = len(world.fleet.targets)
    disk.fail_in(1, errno.ENOSPC)

    with pytest.raises(StoreFull):
        await release(world, m=RouteWish.whole(2), n=RouteWish.whole(2))

    assert len(world.fleet.targets) == before
    await world.stop()


# Restart


async def test_restart_brings_back_split_shadows_previous_and_settings(world):
    """What was acknowledged is there after a crash, and loaded again."""
    await world.push_loaded("m", 4)
    await set_route(world, CANARY)
    await set_route(world, split((2, 50), (4, 50)))
    await world.control.traffic.set_settings("m", {"queue_rows": 5}, world.actor)
    before = world.control.model("m")

    await world.restart()
    await world.control.restored()

    assert world.control.model("m") == before
    assert world.fleet.held == {("m", v): True for v in (1, 2, 3, 4)}
    assert world.fleet.targets[-1].routes == {"m": split((2, 50), (4, 50))}
    assert world.fleet.targets[-1].settings["m"].queue_rows == 5
    first = next(target for target in world.fleet.targets if target.versions)
    assert [version.version for version in first.versions] == [2, 4]


# Settings and what they retain


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

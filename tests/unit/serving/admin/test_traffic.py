"""Splits, shadows and rollbacks: what holds versions, and what becomes of a route."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from models.signature import Signature, TensorSpec
from registry.errors import Conflict, NotFound
from registry.traffic import Traffic
from registry.traffic_rules import RouteWish
from tests.unit.serving.admin.conftest import SIGNATURE
from tests.unit.serving.admin.traffic_steps import CANARY, generation, set_route, split

pytestmark = pytest.mark.timeout(30)
whole = Traffic.whole


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
        "integers": True,
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

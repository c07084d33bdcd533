"""Unloads: what refuses them, when they end, and what they give back."""

from __future__ import annotations

import errno

import pytest

from models.errors import LoadFailed
from registry.errors import Conflict, StoreFull
from registry.traffic_rules import RouteWish
from tests.disk_model import ModelDisk

pytestmark = pytest.mark.timeout(30)
to = RouteWish.whole


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
    await world.control.loads.failures.fail(("m", 2), "damaged", "damaged", world.actor)

    with pytest.raises(Conflict, match="m/2 cannot be unloaded: alias 'other' names it"):
        world.control.unload("m", 2, world.actor)

    assert world.control.status("m", 2) == ("FAILED", "damaged")


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

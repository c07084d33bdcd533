"""Over the budget: what workers measured is more than what was estimated."""

from __future__ import annotations

import pytest

from registry.errors import OverBudget
from tests.unit.serving.admin.conftest import World
from tests.unit.serving.admin.memory_steps import events, grown

pytestmark = pytest.mark.timeout(30)


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

"""What the tests of memory share: versions of a known size, and starts within a budget."""

from __future__ import annotations

import asyncio

from tests.unit.serving.admin.conftest import World

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

"""What the tests of traffic share: splits, and changes of them."""

from __future__ import annotations

from registry.traffic import Share, Traffic
from registry.traffic_rules import RouteWish


def split(*pairs: tuple[int, int], shadow: tuple[int, ...] = ()) -> Traffic:
    return Traffic(tuple(Share(*pair) for pair in pairs), shadow)


CANARY = split((1, 90), (2, 10), shadow=(3,))


async def set_route(world, traffic, **more):
    return await world.control.traffic.set_route("m", RouteWish(traffic), world.actor, **more)


def generation(world) -> int:
    return world.control.writer.state.generation

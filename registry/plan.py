"""Every move of routes, aliases and settings as a plan: steps in order, each of them safe alone.

Pure: a plan is made of the present state and changes nothing. Whoever carries it out persists a
step before anyone is told of it, waits for the workers after it, and stops at the first step that
fails; what the plan loaded is then unloaded again, and what it switched is switched back.

A load is itself three such changes of the state (``desired.begin_load``, then ``finish_load`` or
``fail``), an unload and a deletion are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from registry import desired
from registry.desired import DesiredState
from registry.lifecycle import State
from registry.model_settings import DEFAULT_RETAIN, ModelSettings
from registry.model_state import ModelState
from registry.reasons import holders
from registry.rollout import Stamp
from registry.traffic_rules import RouteWish


@dataclass(frozen=True, slots=True)
class Change:
    """One pure change of one model, and the ``kind`` of the event that records it."""

    kind: str
    model: str
    version: int | None
    apply: Callable[[DesiredState, Stamp], DesiredState]


# Raises Conflict where the state after a switch, or the one before it, is not as it must be.
Check: TypeAlias = Callable[[DesiredState, DesiredState], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Bring a version to READY: nothing that serves is touched by it."""

    model: str
    version: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Make changes of routes, aliases or settings, all of them in one generation.

    ``checks``: get the states before and after. ``is_way_back``: it leads to what was there before,
    and is never switched back itself.
    """

    changes: tuple[Change, ...]
    checks: tuple[Check, ...] = ()
    is_way_back: bool = False


Plan: TypeAlias = tuple[Load | Switch, ...]


def checked(plan: Plan, *checks: Check) -> Plan:
    """Return the plan with its switches happening only if the checks pass."""
    return tuple(
        replace(step, checks=(*step.checks, *checks)) if isinstance(step, Switch) else step
        for step in plan
    )


def plan_alias(name: str, alias: str, version: int | None) -> Plan:
    """Return how an alias comes to name a version; None removes it."""
    if version is None:
        remove = Change("alias_deleted", name, None,
                        lambda s, _: desired.delete_alias(s, name, alias))  # fmt: skip
        return (Switch((remove,)),)
    put = Change("alias", name, version,
                 lambda s, stamp: desired.set_alias(s, name, alias, version, stamp))  # fmt: skip
    return (Switch((put,)),)


def plan_routes(wishes: Mapping[str, RouteWish], kind: str = "route") -> Plan:
    """Return how the routes of models come to be as wished: all at once or none."""
    return (Switch(tuple(_route_change(name, wish, kind) for name, wish in wishes.items())),)


def plan_route_deletion(name: str) -> Plan:
    """Return how a model's route goes, so that it holds no version."""
    delete = Change("route_deleted", name, None, lambda s, _: desired.delete_route(s, name))
    return (Switch((delete,)),)


def plan_rollback(
    state: DesiredState, name: str, to: int | None, is_ready: Callable[[int], bool]
) -> Plan:
    """Return how the former traffic comes back, or version ``to`` whole.

    What is not READY is loaded first; nothing moves before all of it is.
    """
    traffic = desired.rollback_target(state, name, to)
    loads = tuple(Load(name, version) for version in traffic.versions if not is_ready(version))
    back = _route_change(name, RouteWish(traffic), "rollback")
    return (*loads, Switch((back,), is_way_back=True))


def plan_settings(name: str, settings: Callable[[ModelSettings], ModelSettings]) -> Plan:
    """Return how the settings of a model change; ``settings`` makes the new ones of the old."""

    def apply(state: DesiredState, stamp: Stamp) -> DesiredState:
        return desired.set_settings(state, name, settings(state.model(name).settings), stamp)

    return (Switch((Change("settings", name, None, apply),)),)


def expired(model: ModelState, name: str, states: Mapping[int, State], published: int) -> list[int]:
    """Return which old versions go after ``published`` was stored, oldest first.

    Old ones are UNLOADED and named by nothing; the newest ``retain`` of them stay, beside
    ``published`` itself.
    """
    retain = DEFAULT_RETAIN if model.settings.retain is None else model.settings.retain
    old = [
        version
        for version, state in sorted(states.items(), reverse=True)
        if version != published
        and state is State.UNLOADED
        and version not in model.loaded
        and not holders(model, name, version)
    ]
    return sorted(old[retain:])


def _route_change(name: str, wish: RouteWish, kind: str) -> Change:
    traffic = wish.traffic
    if traffic is None:
        return Change(kind, name, None,
                      lambda s, stamp: desired.follow_latest(s, name, stamp))  # fmt: skip
    whole = traffic.split[0].version if len(traffic.versions) == 1 else None
    return Change(kind, name, whole,
                  lambda s, stamp: desired.set_route(s, name, traffic, stamp))  # fmt: skip

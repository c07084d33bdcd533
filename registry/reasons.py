"""Why a version waits, is held, or cannot be named, and the way out of each, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from registry.errors import Conflict
from registry.model_state import ModelState
from registry.rollout import Route

LACK: Final = "not loaded for lack of memory"
ASKED_FOR: Final = (
    "nothing has to be done but to make room: the route or an alias names it, so it comes back by "
    "itself as soon as an unload makes room, or at a start with room for it"
)
NOT_ASKED_FOR: Final = (
    "no route and no alias names it, so it does not come back by itself: make room, then "
    "`ramrack load {name} {version}`; a start with room for it brings it back as well"
)


def why_waiting(model: ModelState, name: str, version: int) -> str | None:
    """Return the reason of a version of model ``name`` that waits for memory, else None."""
    lack = model.waiting.get(version)
    return None if lack is None else waiting_text(model, name, version, lack)


def waiting_text(model: ModelState, name: str, version: int, lack: str) -> str:
    """Say what a version lacks and how it comes back, which is up to what names it now."""
    way = ASKED_FOR if model.is_asked_for(version) else NOT_ASKED_FOR
    return f"{LACK}: {lack}; {way.format(name=name, version=version)}"


def holders(model: ModelState, name: str, version: int) -> list[str]:
    """Return what keeps a version of model ``name``, and the way out of each; else nothing."""
    names = []
    if model.route is not None and (why := _held_by_route(model.route, version)):
        names.append(
            f"{why}, or remove the route with DELETE /admin/v1/models/{name}/route or "
            f"`ramrack route {name} --delete`"
        )
    names += [
        f"alias {alias!r} names it: move it to another version, or remove it with DELETE "
        f"/admin/v1/models/{name}/aliases/{alias} or `ramrack alias {name} {alias} --delete`"
        for alias, entry in model.aliases.items()
        if entry.version == version
    ]
    return names


def refuse_held(name: str, version: int, held_by: Sequence[str], verb: str) -> None:
    """Raise Conflict for what cannot be done to a version, if anything holds it."""
    if held_by:
        raise Conflict(f"{name}/{version} cannot be {verb}: {'; '.join(held_by)}")


def refuse_unready(model: ModelState, name: str, version: int, what: str) -> None:
    """Raise Conflict where ``what``, such as an alias, is to name a version that is not READY."""
    if model.is_ready(version):
        return
    why = why_waiting(model, name, version) or model.failed.get(version)
    if why is not None:
        raise Conflict(f"{what} cannot name {name}/{version}: FAILED: {why}")
    state = "still LOADING" if version in model.loaded else "not loaded: load it first"
    raise Conflict(f"{what} cannot name {name}/{version}: it is {state}")


def _held_by_route(route: Route, version: int) -> str:
    """Return why the route keeps a version, and what to do first; empty if it does not."""
    if route.traffic.weight_of(version):
        return "the route sends requests to it: route to another version first"
    if version in route.traffic.shadow:
        return (
            "it shadows the route: set the route without it (and once more, for the former "
            "traffic is kept for a rollback)"
        )
    if route.is_previous(version):
        return "it is what a rollback of the route goes back to: route to a third version first"
    return ""

"""The desired state: which versions shall be loaded, and what aliases and routes name.

Pure values and functions. Each change returns a new state of the next generation, or raises
Conflict, NotFound or InvalidInput and changes nothing. That a version exists at all is the
store's knowledge: callers look it up first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from registry.errors import Conflict, NotFound
from registry.ident import check_alias, check_model_name
from registry.known import no_route
from registry.manifest import JsonObject
from registry.model_settings import ModelSettings
from registry.model_state import Alias, LoadedVersion, ModelState
from registry.reasons import holders, refuse_held, refuse_unready
from registry.rollout import (
    Route,
    Stamp,
    after_failure,
    backed,
    moved,
    rollback_traffic,
    taken_back,
)
from registry.traffic import Traffic

MAX_ALIASES: Final = 1000

Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The whole wanted state. ``generation`` only rises.

    ``last_events``: what the last change was recorded as; they complete the log after a crash.
    """

    generation: int = 0
    models: Mapping[str, ModelState] = field(default_factory=dict)
    last_events: tuple[JsonObject, ...] = ()

    def model(self, name: str) -> ModelState:
        """Return a model's state; an empty one where nothing is wanted of it."""
        return self.models.get(name, _EMPTY)

    @property
    def loaded(self) -> Mapping[Key, LoadedVersion]:
        """All versions that shall be in memory."""
        return {
            (name, version): entry
            for name, model in self.models.items()
            for version, entry in model.loaded.items()
        }


_EMPTY: Final = ModelState()


def begin_load(
    state: DesiredState, name: str, version: int, inspection: JsonObject
) -> DesiredState:
    """Take the version into memory, not answering yet; an earlier failure is forgotten."""
    model = state.model(name)
    if version in model.loaded:
        raise Conflict(f"{name}/{version} is loaded already")
    loaded = {**model.loaded, version: LoadedVersion(inspection, is_serving=False)}
    return _with(state, name, replace(model, loaded=loaded, failed=_without(model.failed, version)))


def reinspect(state: DesiredState, name: str, version: int, inspection: JsonObject) -> DesiredState:
    """Replace what is known of a version in memory; nothing where it left meanwhile."""
    model = state.model(name)
    if version not in model.loaded:
        return state
    entry = replace(model.loaded[version], inspection=inspection)
    return _with(state, name, replace(model, loaded={**model.loaded, version: entry}))


def finish_load(
    state: DesiredState, name: str, version: int, stamp: Stamp, *, is_by_itself: bool = False
) -> DesiredState:
    """Let a loaded version answer. The route moves only if there is none or it follows latest.

    ``is_by_itself``: nobody asked for the load. Then a model without a route is left without one,
    and a route that follows latest never moves to an older version than it names.
    """
    model = state.model(name)
    if version not in model.loaded:
        # Someone took it out meanwhile, and why is known: nothing is to be added to that.
        raise Conflict(model.failed.get(version, f"{name}/{version} is not being loaded"))
    entry = replace(model.loaded[version], is_serving=True)
    model = replace(
        model,
        loaded={**model.loaded, version: entry},
        waiting=_without(model.waiting, version),
    )
    route, latest = model.route, model.latest
    if route is None:
        if not is_by_itself:
            route = moved(None, Traffic.whole(version), stamp)
    elif (
        route.is_latest
        and latest is not None
        and not (is_by_itself and latest < max(route.traffic.versions))
    ):
        route = moved(route, Traffic.whole(latest), stamp, is_latest=True)
    route = route and backed(route, model.is_kept)
    return _with(state, name, replace(model, route=route))


def wait_for_memory(state: DesiredState, name: str, version: int, reason: str) -> DesiredState:
    """Leave a version out of memory for lack of room; it stays wanted, and named by what names it.

    Nothing where it left meanwhile.
    """
    model = state.model(name)
    if not model.is_kept(version):
        return state
    return _with(state, name, replace(model, waiting={**model.waiting, version: reason}))


def has_memory(state: DesiredState, name: str, version: int) -> DesiredState:
    """End the wait of a version for memory; nothing where it does not wait."""
    model = state.model(name)
    if version not in model.waiting:
        return state
    return _with(state, name, replace(model, waiting=_without(model.waiting, version)))


def fail(state: DesiredState, name: str, version: int, reason: str, stamp: Stamp) -> DesiredState:
    """Take a version out because it cannot serve, and keep the reason.

    What becomes of a route that names it, ``rollout.after_failure`` says; aliases go on naming it,
    and requests learn why there is no answer.
    """
    model = state.model(name)
    was_kept = model.is_kept(version)
    model = replace(
        model,
        loaded=_without(model.loaded, version),
        failed={**model.failed, version: reason},
        waiting=_without(model.waiting, version),
    )
    route = model.route
    if route is not None and was_kept:
        because = replace(stamp, reason=f"version {version} failed: {reason}")
        route = after_failure(route, version, because, model.is_ready, model.is_kept)
    return _with(state, name, replace(model, route=route))


def unload(state: DesiredState, name: str, version: int) -> DesiredState:
    """Take a version out of memory; a failure is forgotten. Conflict if something names it."""
    model = state.model(name)
    if version not in model.loaded and version not in model.failed:
        raise Conflict(f"{name}/{version} is not loaded")
    refuse_held(name, version, holders(model, name, version), "unloaded")
    model = replace(
        model,
        loaded=_without(model.loaded, version),
        failed=_without(model.failed, version),
        waiting=_without(model.waiting, version),
    )
    return _with(state, name, model)


def delete(state: DesiredState, name: str, version: int, *, is_last: bool = False) -> DesiredState:
    """Forget a version that is about to leave the store. Conflict if loaded or named.

    With the last version of a model its settings go, so that another model of the same name
    begins without them.
    """
    model = state.model(name)
    held_by = holders(model, name, version)
    if version in model.loaded:
        why = "it waits for memory to be loaded" if version in model.waiting else "it is loaded"
        held_by.append(
            f"{why}: unload it first with POST /admin/v1/models/{name}/versions/{version}"
            f":unload or `ramrack unload {name} {version}`"
        )
    refuse_held(name, version, held_by, "deleted")
    model = replace(model, failed=_without(model.failed, version))
    if is_last:
        model = replace(model, settings=ModelSettings(), settings_seq=0)
    return _with(state, name, model)


def set_alias(
    state: DesiredState, name: str, alias: str, version: int, stamp: Stamp
) -> DesiredState:
    """Let an alias name a READY version; naming the same again changes nothing."""
    model = state.model(name)
    check_alias(alias)
    refuse_unready(model, name, version, f"alias {alias!r}")
    present = model.aliases.get(alias)
    if present is not None and present.version == version:
        return state
    if present is None and len(model.aliases) >= MAX_ALIASES:
        raise Conflict(f"{name} has {MAX_ALIASES} aliases, the most a model may have")
    aliases = {**model.aliases, alias: Alias(version, stamp.seq)}
    return _with(state, name, replace(model, aliases=aliases))


def delete_alias(state: DesiredState, name: str, alias: str) -> DesiredState:
    """Remove an alias."""
    model = state.model(name)
    if check_alias(alias) not in model.aliases:
        names = ", ".join(sorted(model.aliases)) or "none"
        raise NotFound(f"{name} has no alias {alias!r}: it has {names}")
    aliases = {key: entry for key, entry in model.aliases.items() if key != alias}
    return _with(state, name, replace(model, aliases=aliases))


def set_route(state: DesiredState, name: str, traffic: Traffic, stamp: Stamp) -> DesiredState:
    """Send requests without a version to READY versions, whatever is loaded later."""
    model = state.model(name)
    for version in traffic.versions:
        what = "the route" if traffic.weight_of(version) else "a shadow of the route"
        refuse_unready(model, name, version, what)
    return _with_route(state, name, moved(model.route, traffic, stamp))


def follow_latest(state: DesiredState, name: str, stamp: Stamp) -> DesiredState:
    """Send requests without a version to the highest READY version, now and after each load."""
    model = state.model(name)
    if model.latest is None:
        raise Conflict(f"{name} has no READY version for the route to follow: load one first")
    traffic = Traffic.whole(model.latest)
    return _with_route(state, name, moved(model.route, traffic, stamp, is_latest=True))


def rollback_target(state: DesiredState, name: str, to: int | None) -> Traffic:
    """Return the traffic that a rollback would restore; some of it may have to be loaded first."""
    model = state.model(name)
    if model.route is None:
        raise NotFound(no_route(name, [v for v in model.loaded if model.is_ready(v)]))
    return rollback_traffic(name, model.route, to)


def delete_route(state: DesiredState, name: str) -> DesiredState:
    """Remove the route, so that no version is held by it; the next to become READY is it."""
    model = state.model(name)
    if model.route is None:
        raise NotFound(f"{name} has no route")
    return _with(state, name, replace(model, route=None))


def set_settings(
    state: DesiredState, name: str, settings: ModelSettings, stamp: Stamp
) -> DesiredState:
    """Let ``settings`` hold for a model; the same again changes nothing."""
    model = state.model(name)
    if settings == model.settings:
        return state
    return _with(state, name, replace(model, settings=settings, settings_seq=stamp.seq))


def take_back(
    state: DesiredState, name: str, before: ModelState, after: ModelState, stamp: Stamp
) -> DesiredState:
    """Undo a change of a model's route, aliases or settings from ``before`` to ``after``.

    What was changed again since then stays, and so does what cannot be named any more.
    """
    model = state.model(name)
    if after.route != before.route and model.route == after.route:
        model = replace(model, route=_former_route(model, before.route, stamp))
    for alias in before.aliases.keys() | after.aliases.keys():
        old, new = before.aliases.get(alias), after.aliases.get(alias)
        if old == new or model.aliases.get(alias) != new:
            continue
        aliases = {key: entry for key, entry in model.aliases.items() if key != alias}
        if old is not None and model.is_ready(old.version):
            aliases[alias] = Alias(old.version, stamp.seq)
        elif old is not None:
            continue
        model = replace(model, aliases=aliases)
    if after.settings_seq != before.settings_seq and model.settings_seq == after.settings_seq:
        model = replace(model, settings=before.settings, settings_seq=stamp.seq)
    return state if model == state.model(name) else _with(state, name, model)


def _former_route(model: ModelState, before: Route | None, stamp: Stamp) -> Route | None:
    if before is None:
        return None
    if not all(map(model.is_ready, before.traffic.versions)):
        return model.route
    return taken_back(model.route, before, stamp, model.is_kept)


def with_events(state: DesiredState, events: tuple[JsonObject, ...]) -> DesiredState:
    """Return the state with the events of its last change inside, of the same generation."""
    return replace(state, last_events=events)


def at_once(before: DesiredState, after: DesiredState) -> DesiredState:
    """Return ``after``, which several changes made of ``before``, as one generation."""
    return after if after is before else replace(after, generation=before.generation + 1)


def touched(state: DesiredState) -> DesiredState:
    """Return the same state as a new generation, to publish something that is not persisted."""
    return replace(state, generation=state.generation + 1)


def _with(state: DesiredState, name: str, model: ModelState) -> DesiredState:
    models = {**state.models, check_model_name(name): model}
    if model == _EMPTY:
        del models[name]
    return replace(state, generation=state.generation + 1, models=models)


def _with_route(state: DesiredState, name: str, route: Route) -> DesiredState:
    model = state.model(name)
    route = backed(route, model.is_kept)
    return state if route == model.route else _with(state, name, replace(model, route=route))


def _without(entries: Mapping[int, Any], version: int) -> dict[int, Any]:
    return {key: value for key, value in entries.items() if key != version}

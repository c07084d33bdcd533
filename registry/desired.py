"""The desired state: which versions shall be loaded, and what aliases and routes name.

Pure values and functions. Each change returns a new state of the next generation, or raises
Conflict, NotFound or InvalidInput and changes nothing. That a version exists at all is the
store's knowledge: callers look it up first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from registry.errors import Conflict, InvalidInput, NotFound
from registry.ident import check_alias, check_model_name, check_version, parse_version, shown
from registry.manifest import Json, JsonObject
from registry.rollout import Route, Stamp, moved, parse_route, rollback_version, without_previous

FORMAT: Final = 1
MAX_ALIASES: Final = 1000

Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version that shall be in memory. ``is_serving``: its load ended well, it may answer.

    ``inspection``: what the inspection found, as JSON, so that a restart need not repeat it.
    """

    inspection: JsonObject
    is_serving: bool


@dataclass(frozen=True, slots=True)
class Alias:
    """The version an alias names; ``seq``: the event that set it."""

    version: int
    seq: int

    @property
    def etag(self) -> str:
        """Name this setting of the alias, for If-Match."""
        return f'"{self.seq}"'


@dataclass(frozen=True, slots=True)
class ModelState:
    """All that is wanted of one model. ``failed``: version to the reason it does not serve."""

    loaded: Mapping[int, LoadedVersion] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    route: Route | None = None

    def is_ready(self, version: int) -> bool:
        """Say whether the version is loaded and may answer."""
        entry = self.loaded.get(version)
        return entry is not None and entry.is_serving

    @property
    def latest(self) -> int | None:
        """The highest READY version."""
        return max((v for v, entry in self.loaded.items() if entry.is_serving), default=None)

    def holders(self, name: str, version: int) -> list[str]:
        """Return what keeps a version of model ``name``, and the way out of each; else nothing."""
        removed = (
            f"remove the route with DELETE /admin/v1/models/{name}/route or "
            f"`ramrack route {name} --delete`"
        )
        names = []
        if self.route is not None and self.route.version == version:
            names.append(
                f"the route sends requests to it: route to another version first, or {removed}"
            )
        elif self.route is not None and self.route.previous == version:
            names.append(
                "it is what a rollback of the route goes back to: route to a third version first, "
                f"or {removed}"
            )
        names += [
            f"alias {alias!r} names it: move it to another version, or remove it with DELETE "
            f"/admin/v1/models/{name}/aliases/{alias} or `ramrack alias {name} {alias} --delete`"
            for alias, entry in self.aliases.items()
            if entry.version == version
        ]
        return names


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The whole wanted state. ``generation`` only rises; ``last_event`` completes the log."""

    generation: int = 0
    models: Mapping[str, ModelState] = field(default_factory=dict)
    last_event: JsonObject | None = None

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


def finish_load(state: DesiredState, name: str, version: int, stamp: Stamp) -> DesiredState:
    """Let a loaded version answer. The route moves only if there is none or it follows latest."""
    model = state.model(name)
    if version not in model.loaded:
        # Someone took it out meanwhile, and why is known: nothing is to be added to that.
        raise Conflict(model.failed.get(version, f"{name}/{version} is not being loaded"))
    entry = replace(model.loaded[version], is_serving=True)
    model = replace(model, loaded={**model.loaded, version: entry})
    route = model.route
    if route is None:
        route = moved(None, version, stamp)
    elif route.is_latest and model.latest is not None:
        route = moved(route, model.latest, stamp, is_latest=True)
    return _with(state, name, replace(model, route=_backed(model, route)))


def fail(state: DesiredState, name: str, version: int, reason: str, stamp: Stamp) -> DesiredState:
    """Take a version out because it cannot serve, and keep the reason.

    A route that sent requests to it goes back to its previous version if that one is READY;
    otherwise route and aliases go on naming it, and requests learn why there is no answer.
    """
    model = state.model(name)
    was_ready = model.is_ready(version)
    model = replace(
        model,
        loaded=_without(model.loaded, version),
        failed={**model.failed, version: reason},
    )
    route = model.route
    if route is not None and was_ready and route.version == version:
        if route.previous is not None and model.is_ready(route.previous):
            back = replace(stamp, reason=f"version {version} failed: {reason}")
            route = without_previous(moved(route, route.previous, back), version)
    elif route is not None:
        route = without_previous(route, version)
    return _with(state, name, replace(model, route=route))


def unload(state: DesiredState, name: str, version: int) -> DesiredState:
    """Take a version out of memory; a failure is forgotten. Conflict if something names it."""
    model = state.model(name)
    if version not in model.loaded and version not in model.failed:
        raise Conflict(f"{name}/{version} is not loaded")
    if version in model.loaded:
        _refuse_held(name, version, model.holders(name, version), "unloaded")
    model = replace(
        model, loaded=_without(model.loaded, version), failed=_without(model.failed, version)
    )
    return _with(state, name, model)


def delete(state: DesiredState, name: str, version: int) -> DesiredState:
    """Forget a version that is about to leave the store. Conflict if loaded or named."""
    model = state.model(name)
    holders = model.holders(name, version)
    if version in model.loaded:
        holders.append(
            f"it is loaded: unload it first with POST /admin/v1/models/{name}/versions/{version}"
            f":unload or `ramrack unload {name} {version}`"
        )
    _refuse_held(name, version, holders, "deleted")
    return _with(state, name, replace(model, failed=_without(model.failed, version)))


def set_alias(
    state: DesiredState, name: str, alias: str, version: int, stamp: Stamp
) -> DesiredState:
    """Let an alias name a READY version; naming the same again changes nothing."""
    model = state.model(name)
    check_alias(alias)
    _refuse_unready(model, name, version, f"alias {alias!r}")
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
        raise NotFound(f"{name} has no alias {alias!r}")
    aliases = {key: entry for key, entry in model.aliases.items() if key != alias}
    return _with(state, name, replace(model, aliases=aliases))


def set_route(state: DesiredState, name: str, version: int, stamp: Stamp) -> DesiredState:
    """Send requests without a version to a READY version, whatever is loaded later."""
    model = state.model(name)
    _refuse_unready(model, name, version, "the route")
    return _with_route(state, name, moved(model.route, version, stamp))


def follow_latest(state: DesiredState, name: str, stamp: Stamp) -> DesiredState:
    """Send requests without a version to the highest READY version, now and after each load."""
    latest = state.model(name).latest
    if latest is None:
        raise Conflict(f"{name} has no READY version for the route to follow: load one first")
    return _with_route(state, name, moved(state.model(name).route, latest, stamp, is_latest=True))


def rollback_target(state: DesiredState, name: str, to: int | None) -> int:
    """Return the version that a rollback would go to; it may have to be loaded first."""
    route = state.model(name).route
    if route is None:
        raise NotFound(f"{name} has no route to roll back: the next version loaded becomes it")
    return rollback_version(name, route, to)


def delete_route(state: DesiredState, name: str) -> DesiredState:
    """Remove the route, so that no version is held by it; the next version loaded becomes it."""
    model = state.model(name)
    if model.route is None:
        raise NotFound(f"{name} has no route")
    return _with(state, name, replace(model, route=None))


def with_event(state: DesiredState, event: JsonObject) -> DesiredState:
    """Return the state with the event of its last change inside, of the same generation."""
    return replace(state, last_event=event)


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
    route = _backed(model, route)
    return state if route == model.route else _with(state, name, replace(model, route=route))


def _backed(model: ModelState, route: Route) -> Route:
    """Return the route without a previous version that cannot answer: it came from a failed one."""
    if route.previous is None or model.is_ready(route.previous):
        return route
    return without_previous(route, route.previous)


def _without(entries: Mapping[int, Any], version: int) -> dict[int, Any]:
    return {key: value for key, value in entries.items() if key != version}


def _refuse_held(name: str, version: int, holders: list[str], verb: str) -> None:
    if holders:
        raise Conflict(f"{name}/{version} cannot be {verb}: {'; '.join(holders)}")


def _refuse_unready(model: ModelState, name: str, version: int, what: str) -> None:
    if model.is_ready(version):
        return
    if version in model.failed:
        raise Conflict(f"{what} cannot name {name}/{version}: FAILED: {model.failed[version]}")
    state = "still LOADING" if version in model.loaded else "not loaded: load it first"
    raise Conflict(f"{what} cannot name {name}/{version}: it is {state}")


def to_json(state: DesiredState) -> JsonObject:
    """Return the document that is persisted; ``parse`` reads it back to an equal state."""
    return {
        "format": FORMAT,
        "generation": state.generation,
        "models": {name: _model_json(model) for name, model in state.models.items()},
        "last_event": state.last_event,
    }


def _model_json(model: ModelState) -> JsonObject:
    loaded: JsonObject = {
        str(version): {"inspection": entry.inspection, "is_serving": entry.is_serving}
        for version, entry in model.loaded.items()
    }
    failed: JsonObject = {str(version): reason for version, reason in model.failed.items()}
    aliases: JsonObject = {
        name: {"version": alias.version, "seq": alias.seq} for name, alias in model.aliases.items()
    }
    route: Json = None if model.route is None else model.route.to_json()
    return {"loaded": loaded, "failed": failed, "aliases": aliases, "route": route}


def parse(document: object) -> DesiredState:
    """Return the state of a persisted document, or raise InvalidInput naming the field."""
    body = _fields(document, "state", {"format", "generation", "models", "last_event"})
    if body["format"] != FORMAT:
        raise InvalidInput(f"state.format: {shown(body['format'])} is not supported: use {FORMAT}")
    generation = body["generation"]
    if type(generation) is not int or generation < 0:
        raise InvalidInput(f"state.generation: {shown(generation)} must be an integer from 0")
    event = body["last_event"]
    if event is not None and not isinstance(event, dict):
        raise InvalidInput("state.last_event: must be an object or null")
    models = {
        check_model_name(name): _parse_model(item, f"state.models.{name}")
        for name, item in _object(body["models"], "state.models").items()
    }
    return DesiredState(generation, models, event)


def _parse_model(item: object, where: str) -> ModelState:
    body = _fields(item, where, {"loaded", "failed", "aliases", "route"})
    loaded = {}
    for key, value in _object(body["loaded"], f"{where}.loaded").items():
        entry = _fields(value, f"{where}.loaded.{key}", {"inspection", "is_serving"})
        if type(entry["is_serving"]) is not bool:
            raise InvalidInput(f"{where}.loaded.{key}.is_serving: must be true or false")
        inspection = _object(entry["inspection"], f"{where}.loaded.{key}.inspection")
        loaded[parse_version(key)] = LoadedVersion(inspection, entry["is_serving"])
    failed = {}
    for key, reason in _object(body["failed"], f"{where}.failed").items():
        if not isinstance(reason, str):
            raise InvalidInput(f"{where}.failed.{key}: must be a string")
        failed[parse_version(key)] = reason
    aliases = {}
    for key, value in _object(body["aliases"], f"{where}.aliases").items():
        entry = _fields(value, f"{where}.aliases.{key}", {"version", "seq"})
        if type(entry["seq"]) is not int:
            raise InvalidInput(f"{where}.aliases.{key}.seq: must be an integer")
        aliases[check_alias(key)] = Alias(check_version(entry["version"]), entry["seq"])
    route = None if body["route"] is None else parse_route(body["route"], f"{where}.route")
    return ModelState(loaded, failed, aliases, route)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: must be an object, got {type(value).__name__}")
    return value


def _fields(value: object, where: str, keys: set[str]) -> dict[str, Any]:
    body = _object(value, where)
    if set(body) != keys:
        odd = sorted(set(body) ^ keys)
        raise InvalidInput(f"{where}: field {shown(odd[0])} is unknown or missing")
    return body

"""The persisted form of the desired state: how it is written, read, and brought up to date."""

from __future__ import annotations

from typing import Any, Final

from registry import model_settings, traffic_rules
from registry.desired import Alias, DesiredState, LoadedVersion, ModelState
from registry.errors import InvalidInput
from registry.ident import check_alias, check_model_name, check_version, parse_version, shown
from registry.manifest import Json, JsonObject
from registry.rollout import HISTORY_ENTRIES, Route, RouteChange
from registry.traffic import Traffic

FORMAT: Final = 2


def to_json(state: DesiredState) -> JsonObject:
    """Return the document that is persisted; ``parse`` reads it back to an equal state."""
    return {
        "format": FORMAT,
        "generation": state.generation,
        "models": {name: _model_json(model) for name, model in state.models.items()},
        "last_events": list(state.last_events),
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
    route: Json = None
    if model.route is not None:
        history: list[Json] = [change.to_json() for change in model.route.history]
        route = {**model.route.facts(), "history": history}
    return {
        "loaded": loaded,
        "failed": failed,
        "aliases": aliases,
        "route": route,
        "settings": {"values": model.settings.to_json(), "seq": model.settings_seq},
    }


def parse(document: object) -> DesiredState:
    """Return the state of a persisted document, or raise InvalidInput naming the field.

    A document of format 1, of a release whose routes were one version each, is read as well.
    """
    found = _object(document, "state").get("format")
    if type(found) is int and found == 1:
        document = _upgraded(document)
    elif type(found) is not int or found != FORMAT:
        raise InvalidInput(f"state.format: {shown(found)} is not supported: use 1 to {FORMAT}")
    body = _fields(document, "state", {"format", "generation", "models", "last_events"})
    generation = _count(body["generation"], "state.generation")
    events = body["last_events"]
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InvalidInput("state.last_events: must be a list of objects")
    models = {
        check_model_name(name): _parse_model(item, f"state.models.{name}")
        for name, item in _object(body["models"], "state.models").items()
    }
    return DesiredState(generation, models, tuple(events))


def _parse_model(item: object, where: str) -> ModelState:
    body = _fields(item, where, {"loaded", "failed", "aliases", "route", "settings"})
    loaded = {}
    for key, value in _object(body["loaded"], f"{where}.loaded").items():
        entry = _fields(value, f"{where}.loaded.{key}", {"inspection", "is_serving"})
        inspection = _object(entry["inspection"], f"{where}.loaded.{key}.inspection")
        is_serving = _flag(entry["is_serving"], f"{where}.loaded.{key}.is_serving")
        loaded[parse_version(key)] = LoadedVersion(inspection, is_serving)
    failed = {}
    for key, reason in _object(body["failed"], f"{where}.failed").items():
        failed[parse_version(key)] = _text(reason, f"{where}.failed.{key}")
    aliases = {}
    for key, value in _object(body["aliases"], f"{where}.aliases").items():
        entry = _fields(value, f"{where}.aliases.{key}", {"version", "seq"})
        seq = _count(entry["seq"], f"{where}.aliases.{key}.seq")
        aliases[check_alias(key)] = Alias(check_version(entry["version"]), seq)
    route = None if body["route"] is None else _parse_route(body["route"], f"{where}.route")
    entry = _fields(body["settings"], f"{where}.settings", {"values", "seq"})
    values = _object(entry["values"], f"{where}.settings.values")
    settings = model_settings.changed(
        model_settings.ModelSettings(), values, f"{where}.settings.values"
    )
    seq = _count(entry["seq"], f"{where}.settings.seq")
    return ModelState(loaded, failed, aliases, route, settings, seq)


def _parse_route(item: object, where: str) -> Route:
    body = _fields(item, where, {"split", "shadow", "latest", "previous", "history"})
    history = body["history"]
    if not isinstance(history, list) or not 1 <= len(history) <= HISTORY_ENTRIES:
        raise InvalidInput(f"{where}.history: must be a list of 1 to {HISTORY_ENTRIES} changes")
    previous = body["previous"]
    if previous is not None:
        fields = _fields(previous, f"{where}.previous", {"split", "shadow"})
        previous = _traffic(fields, f"{where}.previous")
    return Route(
        traffic=_traffic(body, where),
        is_latest=_flag(body["latest"], f"{where}.latest"),
        previous=previous,
        history=tuple(
            _parse_change(item, f"{where}.history[{index}]") for index, item in enumerate(history)
        ),
    )


def _parse_change(item: object, where: str) -> RouteChange:
    body = _fields(item, where, {"seq", "time", "who", "reason", "split", "shadow", "latest"})
    return RouteChange(
        seq=_count(body["seq"], f"{where}.seq"),
        time=_text(body["time"], f"{where}.time"),
        who=_text(body["who"], f"{where}.who"),
        reason=_text(body["reason"], f"{where}.reason"),
        traffic=_traffic(body, where),
        is_latest=_flag(body["latest"], f"{where}.latest"),
    )


def _traffic(body: dict[str, Any], where: str) -> Traffic:
    if not isinstance(body["shadow"], list):
        raise InvalidInput(f"{where}.shadow: must be a list")
    return traffic_rules.parse_traffic(body["split"], body["shadow"], where)


def _upgraded(document: object) -> JsonObject:
    """Return a document of format 1 as format 2.

    Format 1 had one version as a route and as what it came from, one last event, no settings.
    """
    body = _fields(document, "state", {"format", "generation", "models", "last_event"})
    event = body["last_event"]
    models: JsonObject = {}
    for name, item in _object(body["models"], "state.models").items():
        model = _fields(item, f"state.models.{name}", {"loaded", "failed", "aliases", "route"})
        route = model["route"]
        if route is not None:
            route = _upgraded_route(route, f"state.models.{name}.route")
        models[name] = {**model, "route": route, "settings": {"values": {}, "seq": 0}}
    return {
        "format": FORMAT,
        "generation": body["generation"],
        "models": models,
        "last_events": [] if event is None else [event],
    }


def _upgraded_route(route: object, where: str) -> JsonObject:
    body = _fields(route, where, {"version", "latest", "previous", "history"})
    history = body["history"]
    if not isinstance(history, list):
        raise InvalidInput(f"{where}.history: must be a list")
    changes: list[Json] = [
        {**_object(change, f"{where}.history[{index}]"), "shadow": []}
        for index, change in enumerate(history)
    ]
    previous = body["previous"]
    return {
        "split": [{"version": body["version"], "weight": 100}],
        "shadow": [],
        "latest": body["latest"],
        "previous": None if previous is None else {
            "split": [{"version": previous, "weight": 100}], "shadow": [],
        },
        "history": changes,
    }  # fmt: skip


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


def _count(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidInput(f"{where}: {shown(value)} must be an integer from 0")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {shown(value)} must be a string")
    return value


def _flag(value: object, where: str) -> bool:
    if type(value) is not bool:
        raise InvalidInput(f"{where}: {shown(value)} must be true or false")
    return value

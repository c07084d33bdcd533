"""The persisted form of the desired state: how it is written, read, and brought up to date."""

from __future__ import annotations

from typing import Any, Final

from registry import model_settings, traffic_rules
from registry.desired import DesiredState
from registry.errors import InvalidInput
from registry.ident import check_alias, check_model_name, check_version, parse_version
from registry.manifest import Json, JsonObject
from registry.model_state import Alias, LoadedVersion, ModelState
from registry.rollout import HISTORY_ENTRIES, Route, RouteChange
from registry.slots import Slots, first_slots
from registry.state_fields import count_of, fields_of, flag_of, object_of, text_of
from registry.state_upgrade import upgraded
from registry.traffic import Traffic

FORMAT: Final = 3


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
        route = {
            **model.route.facts(),
            "slots": _slots_json(model.route.slots),
            "previous_slots": _slots_json(model.route.previous_slots),
            "history": history,
        }
    return {
        "loaded": loaded,
        "failed": failed,
        "aliases": aliases,
        "route": route,
        "settings": {"values": model.settings.to_json(), "seq": model.settings_seq},
    }


def parse(document: object) -> DesiredState:
    """Return the state of a persisted document, or raise InvalidInput naming the field.

    Documents of the formats before this one are read as well, see ``registry.state_upgrade``.
    """
    document = upgraded(document, FORMAT)
    body = fields_of(document, "state", {"format", "generation", "models", "last_events"})
    generation = count_of(body["generation"], "state.generation")
    events = body["last_events"]
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InvalidInput("state.last_events: must be a list of objects")
    models = {
        check_model_name(name): _parse_model(item, f"state.models.{name}")
        for name, item in object_of(body["models"], "state.models").items()
    }
    return DesiredState(generation, models, tuple(events))


def _parse_model(item: object, where: str) -> ModelState:
    body = fields_of(item, where, {"loaded", "failed", "aliases", "route", "settings"})
    loaded = {}
    for key, value in object_of(body["loaded"], f"{where}.loaded").items():
        entry = fields_of(value, f"{where}.loaded.{key}", {"inspection", "is_serving"})
        inspection = object_of(entry["inspection"], f"{where}.loaded.{key}.inspection")
        is_serving = flag_of(entry["is_serving"], f"{where}.loaded.{key}.is_serving")
        loaded[parse_version(key)] = LoadedVersion(inspection, is_serving)
    failed = {}
    for key, reason in object_of(body["failed"], f"{where}.failed").items():
        failed[parse_version(key)] = text_of(reason, f"{where}.failed.{key}")
    aliases = {}
    for key, value in object_of(body["aliases"], f"{where}.aliases").items():
        entry = fields_of(value, f"{where}.aliases.{key}", {"version", "seq"})
        seq = count_of(entry["seq"], f"{where}.aliases.{key}.seq")
        aliases[check_alias(key)] = Alias(check_version(entry["version"]), seq)
    route = None if body["route"] is None else _parse_route(body["route"], f"{where}.route")
    entry = fields_of(body["settings"], f"{where}.settings", {"values", "seq"})
    values = object_of(entry["values"], f"{where}.settings.values")
    settings = model_settings.changed(
        model_settings.ModelSettings(), values, f"{where}.settings.values"
    )
    seq = count_of(entry["seq"], f"{where}.settings.seq")
    return ModelState(loaded, failed, aliases, route, settings, seq)


def _parse_route(item: object, where: str) -> Route:
    body = fields_of(
        item, where,
        {"split", "shadow", "latest", "previous", "history", "slots", "previous_slots"},
    )  # fmt: skip
    history = body["history"]
    if not isinstance(history, list) or not 1 <= len(history) <= HISTORY_ENTRIES:
        raise InvalidInput(f"{where}.history: must be a list of 1 to {HISTORY_ENTRIES} changes")
    previous = body["previous"]
    if previous is not None:
        fields = fields_of(previous, f"{where}.previous", {"split", "shadow"})
        previous = _traffic(fields, f"{where}.previous")
    traffic = _traffic(body, where)
    return Route(
        traffic=traffic,
        is_latest=flag_of(body["latest"], f"{where}.latest"),
        previous=previous,
        history=tuple(
            _parse_change(item, f"{where}.history[{index}]") for index, item in enumerate(history)
        ),
        slots=_parse_slots(body["slots"], traffic, f"{where}.slots"),
        previous_slots=_parse_slots(body["previous_slots"], previous, f"{where}.previous_slots"),
    )


def _slots_json(slots: Slots) -> list[Json]:
    """Return nothing where all slots are one version's, as most are: that is told by the route."""
    return list(slots) if len(set(slots)) > 1 else []


def _parse_slots(value: object, traffic: Traffic | None, where: str) -> Slots:
    """Return the slots; of a document that has none, those of a new split."""
    if not isinstance(value, list) or not all(type(version) is int for version in value):
        raise InvalidInput(f"{where}: must be a list of versions")
    fresh = first_slots(traffic.split) if traffic is not None else ()
    if value and sorted(value) != sorted(fresh):
        raise InvalidInput(f"{where}: must have each version of the split as often as its weight")
    return tuple(value) or fresh


def _parse_change(item: object, where: str) -> RouteChange:
    body = fields_of(item, where, {"seq", "time", "who", "reason", "split", "shadow", "latest"})
    return RouteChange(
        seq=count_of(body["seq"], f"{where}.seq"),
        time=text_of(body["time"], f"{where}.time"),
        who=text_of(body["who"], f"{where}.who"),
        reason=text_of(body["reason"], f"{where}.reason"),
        traffic=_traffic(body, where),
        is_latest=flag_of(body["latest"], f"{where}.latest"),
    )


def _traffic(body: dict[str, Any], where: str) -> Traffic:
    if not isinstance(body["shadow"], list):
        raise InvalidInput(f"{where}.shadow: must be a list")
    return traffic_rules.parse_traffic(body["split"], body["shadow"], where)

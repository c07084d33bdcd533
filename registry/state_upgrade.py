"""Makes the persisted state of an earlier release one of this release, format by format."""

from __future__ import annotations

from typing import Any

from registry.errors import InvalidInput
from registry.ident import shown
from registry.manifest import Json, JsonObject
from registry.state_fields import fields_of, object_of


def upgraded(document: object, wanted: int) -> object:
    """Return the document in the format ``wanted``, or raise InvalidInput naming the field."""
    found = object_of(document, "state").get("format")
    if type(found) is not int or not 1 <= found <= wanted:
        raise InvalidInput(f"state.format: {shown(found)} is not supported: use 1 to {wanted}")
    for step in (_of_format_1, _of_format_2)[found - 1 : wanted - 1]:
        document = step(document)
    return document


def _of_format_1(document: object) -> JsonObject:
    """Format 1 had one version as a route and as what it came from, one last event, no settings."""
    body = fields_of(document, "state", {"format", "generation", "models", "last_event"})
    event = body["last_event"]
    models: JsonObject = {}
    for name, item in object_of(body["models"], "state.models").items():
        model = fields_of(item, f"state.models.{name}", {"loaded", "failed", "aliases", "route"})
        route = model["route"]
        if route is not None:
            route = _route_of_format_1(route, f"state.models.{name}.route")
        models[name] = {**model, "route": route, "settings": {"values": {}, "seq": 0}}
    return {
        "format": 2,
        "generation": body["generation"],
        "models": models,
        "last_events": [] if event is None else [event],
    }


def _route_of_format_1(route: object, where: str) -> JsonObject:
    body = fields_of(route, where, {"version", "latest", "previous", "history"})
    history = body["history"]
    if not isinstance(history, list):
        raise InvalidInput(f"{where}.history: must be a list")
    changes: list[Json] = [
        {**object_of(change, f"{where}.history[{index}]"), "shadow": []}
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


def _of_format_2(document: object) -> JsonObject:
    """Format 2 chose the version of a key by the weights alone: its splits begin with new slots."""
    body: dict[str, Any] = object_of(document, "state")
    models: JsonObject = {}
    for name, item in object_of(body.get("models"), "state.models").items():
        model = object_of(item, f"state.models.{name}")
        route = model.get("route")
        if route is not None:
            route = object_of(route, f"state.models.{name}.route")
            model = {**model, "route": {**route, "slots": [], "previous_slots": []}}
        models[name] = model
    return {**body, "format": 3, "models": models}

"""What the console shows of models, server, operations and events: small, as it is sent often.

The admin API's own documents carry signatures and manifests, which nobody reads once a second.
"""

from __future__ import annotations

import json
from typing import Final

from registry.desired import Key
from registry.errors import RegistryError
from registry.events import Event
from registry.lifecycle import State
from registry.manifest import Json, JsonObject
from registry.rollout import Route
from registry.store import VersionRecord
from serving.admin.views import AdminViews
from serving.control.control_plane import ControlPlane
from serving.control.ledger import VersionMemory
from serving.errors import message_of
from serving.web.common import VERSION

# Versions that are not loaded are shown as far as a person can want to load one of them.
MAX_UNLOADED_PER_MODEL: Final = 10
MAX_VERSIONS: Final = 1000
MAX_OPERATIONS: Final = 20
MAX_EVENTS: Final = 50
# Longer values of a change are in the events of the admin API.
MAX_VALUE_CHARS: Final = 400


class Overview:
    """Reads the control plane on its event loop; changes nothing."""

    def __init__(self, control: ControlPlane, views: AdminViews) -> None:
        self._control = control
        self._views = views
        self._events: JsonObject = {"latest": []}
        self._events_seq = -1

    def server(self) -> JsonObject:
        """Return the release and whether it is ready."""
        is_ready, body = self._views.readiness()
        return {"version": VERSION, "ready": is_ready, "reason": body.get("error", "")}

    def models(self) -> JsonObject:
        """Return every model with the versions that matter; ``left_out`` counts the others."""
        held = self._control.ledger.versions()
        models: list[Json] = []
        room, left_out = MAX_VERSIONS, 0
        for name in sorted(self._control.writer.records):
            versions, left = self._versions(name, held, room)
            room -= len(versions)
            left_out += left
            model = self._control.model(name)
            aliases: JsonObject = {
                alias: {"version": entry.version, "etag": entry.etag}
                for alias, entry in sorted(model.aliases.items())
            }
            models.append({
                "name": name,
                "aliases": aliases,
                "route": None if model.route is None else _route(model.route),
                "versions": versions,
            })  # fmt: skip
        return {"models": models, "left_out": left_out}

    def memory(self) -> JsonObject:
        """Return the sums of the ledger; each version has its own part."""
        document = self._views.memory()
        del document["versions"]
        return document

    def workers(self) -> JsonObject:
        """Return every worker slot."""
        return self._views.workers()

    def operations(self) -> list[Json]:
        """Return operations under way and the last that ended, newest first."""
        found: list[Json] = [
            operation.to_json() for operation in self._control.operations.latest(MAX_OPERATIONS)
        ]
        return found

    async def events(self) -> JsonObject:
        """Return the newest events, newest first; read only when there is a new one."""
        seq = self._control.store.events.last_seq
        if seq != self._events_seq:
            try:
                events = await self._control.events(max(0, seq - MAX_EVENTS), None, MAX_EVENTS)
            except RegistryError as error:
                return {"latest": [], "error": message_of(error)}
            latest: list[Json] = [_event(event) for event in reversed(events)]
            self._events = {"latest": latest}
            self._events_seq = seq
        return self._events

    def _versions(
        self, name: str, held: dict[Key, VersionMemory], room: int
    ) -> tuple[list[Json], int]:
        records = self._control.writer.versions(name)
        states = {number: self._control.status(name, number) for number in records}
        unloaded = [v for v in sorted(records) if states[v][0] is State.UNLOADED]
        hidden = set(unloaded[:-MAX_UNLOADED_PER_MODEL])
        shown = [v for v in sorted(records) if v not in hidden][-room:] if room else []
        versions: list[Json] = [
            self._version(records[v], *states[v], held.get((name, v))) for v in shown
        ]
        return versions, len(records) - len(shown)

    def _version(
        self, record: VersionRecord, state: State, reason: str, memory: VersionMemory | None
    ) -> JsonObject:
        key = (record.model, record.version)
        found = memory or self._control.ledger.at_rest(record)
        in_ram = self._control.residency.of(key)
        return {
            "version": record.version,
            "state": state.value,
            "reason": reason,
            "published": record.published,
            "load_s": self._control.loads.load_s.get(key),
            "mode": found.mode,
            "disk_bytes": found.disk_bytes,
            "object_bytes": found.object_bytes,
            "unique_bytes": found.unique_bytes,
            "shared_bytes": found.shared_bytes,
            "private_bytes_per_worker": found.private_bytes_per_worker,
            "private_bytes": found.private_bytes,
            "resident_bytes": in_ram.resident_bytes if in_ram else 0,
        }


def _route(route: Route) -> JsonObject:
    last = route.history[-1]
    changed: JsonObject = {"time": last.time, "who": last.who, "reason": last.reason}
    return {**route.facts(), "etag": route.etag, "changed": changed}


def _event(event: Event) -> JsonObject:
    document = event.to_json()
    for side in ("before", "after"):
        if len(json.dumps(document[side])) > MAX_VALUE_CHARS:
            document[side] = "…"
    return document

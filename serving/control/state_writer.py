"""The one writer of the desired state: persist, record, publish, in this order, one at a time.

The state document holds the event of its last change, so state and record cannot part: what a
crash kept out of the event log is completed from the document at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from models.servable import Inspection, parse_inspection
from registry import desired, state_document
from registry.desired import DesiredState, Key
from registry.errors import NotFound, RegistryError
from registry.events import Event, parse_event
from registry.ident import check_model_name
from registry.known import unknown_model, unknown_version
from registry.lifecycle import State
from registry.manifest import Json, JsonObject, Manifest
from registry.model_settings import ModelSettings
from registry.plan import Change, Check
from registry.reasons import why_waiting
from registry.rollout import Stamp, in_force
from registry.store import Store, VersionRecord
from serving.auth import Actor
from serving.control.change_events import (
    MAX_REASON_CHARS,
    Note,
    difference,
    event_of,
    moved_routes,
    stamp_of,
)
from serving.fleet import Fleet
from serving.target import CatalogEntry, Target, TargetVersion

DOCUMENT: Final = "state"
_NO_SIGNATURE: Final[JsonObject] = {"inputs": [], "outputs": []}
NO_SETTINGS: Final = ModelSettings()
T = TypeVar("T")
_log = logging.getLogger(__name__)


class StateWriter:
    """Holds the desired state; everything that changes it goes through here.

    Event-loop thread only. ``restoring``: wanted versions that a start has not brought back yet;
    ``warming``: those that are being brought back; ``draining``: versions leaving the workers,
    with the generation that took them out; ``swaps``: how often a route moved. All four are of this
    process and not persisted.
    """

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self.store = store
        self.fleet = fleet
        self.state = DesiredState()
        self.records: dict[str, dict[int, VersionRecord]] = {}
        self.restoring: set[Key] = set()
        self.warming: set[Key] = set()
        self.draining: dict[Key, int] = {}
        self.is_restored = False
        self.swaps = 0
        self._lock = asyncio.Lock()
        self._commits: set[asyncio.Task[Any]] = set()
        self._inspections: dict[Key, tuple[JsonObject, Inspection]] = {}
        self._unlogged: list[Event] = []

    async def open(self) -> None:
        """Read what was persisted and finish what a crash cut short. Publishes nothing."""
        document = await asyncio.to_thread(self.store.read_document, DOCUMENT)
        if document is not None:
            self.state = state_document.parse(document)
        for event in map(parse_event, self.state.last_events):
            await asyncio.to_thread(self.store.events.append_if_missing, event)
            if event.kind == "delete" and event.model is not None and event.version is not None:
                await self._finish_delete(event.model, event.version)
        self.records = await asyncio.to_thread(self._read_records)
        if self.store.events.damage:
            _log.warning("%s: see `ramrack verify`", self.store.events.damage)

    def record(self, model: str, version: int) -> VersionRecord:
        """Return what is stored of a version, or raise NotFound."""
        versions = self.versions(model)
        if version not in versions:
            raise unknown_version(model, version, versions)
        return versions[version]

    def versions(self, model: str) -> Mapping[int, VersionRecord]:
        """Return all versions of a model in numeric order, or raise NotFound."""
        found = self.records.get(check_model_name(model), {})
        # A model all of whose records are lost may still have a route to remove.
        if not found and model not in self.state.models:
            raise unknown_model(model, self.records.keys() | self.state.models.keys())
        return found

    def status(self, key: Key) -> tuple[State, str]:
        """Return where a stored version stands, and why."""
        model = self.state.model(key[0])
        entry = model.loaded.get(key[1])
        if entry is not None:
            if (why := why_waiting(model, *key)) is not None:
                return State.FAILED, why
            if key in self.restoring:
                return State.LOADING, "waits to be loaded again after the server's start"
            if key in self.warming:
                return State.LOADING, "is being loaded again after the server's start"
            if not entry.is_serving:
                return State.LOADING, "is being loaded and warmed up in every worker"
            drift = self.inspection(key, entry.inspection).drift
            return State.READY, drift or "loaded and warmed up in every worker"
        if key[1] in model.failed:
            return State.FAILED, model.failed[key[1]]
        if key in self.draining:
            return State.DRAINING, "waits for requests under way before its memory is given back"
        return State.UNLOADED, "not loaded: load it to serve it"

    async def change(
        self, apply: Callable[[DesiredState, Stamp], DesiredState], note: Note | None
    ) -> tuple[DesiredState, DesiredState]:
        """Apply a pure change and make it durable, recorded and published; return before, after.

        Without ``note`` no event is recorded. What changes nothing is neither written nor
        recorded. Once begun it runs to its end, even if the caller is cancelled.
        """
        if note is None:
            return await self._exclusively(self._change_silently(apply))
        change = Change(note.kind, note.model or "", note.version, apply)
        return await self._exclusively(self._change([change], note.actor, note.reason))

    async def change_all(
        self, changes: Sequence[Change], actor: Actor, reason: str, checks: Sequence[Check] = ()
    ) -> tuple[DesiredState, DesiredState]:
        """Apply changes as one generation, each with an event of its own, or none of them.

        ``checks`` see the states before and after, and refuse all of it by raising.
        """
        return await self._exclusively(self._change(changes, actor, reason, checks))

    async def publish_version(
        self, manifest: Manifest, actor: Actor, reason: str
    ) -> tuple[VersionRecord, bool]:
        """Store a new version and tell the workers that it exists."""
        return await self._exclusively(self._publish_version(manifest, actor, reason))

    async def delete_version(self, model: str, version: int, actor: Actor, reason: str) -> None:
        """Remove a version that nothing names from the state, then from the store."""
        await self._exclusively(self._delete_version(model, version, actor, reason))

    async def record_event(self, note: Note, after: Json) -> None:
        """Record something that changes no desired state, such as a clean-up."""
        await self._exclusively(self._record_event(note, after))

    async def announce(
        self, apply: Callable[[DesiredState], DesiredState] = desired.touched
    ) -> None:
        """Publish the same wanted state as a new generation, for what this process alone knows.

        Writes nothing: a server that starts again starts new workers, which know no generation.
        So a start and its restore need no room on the disk. ``apply`` changes nothing but what is
        not persisted, or nothing at all.
        """
        await self._exclusively(self._announce(apply))

    def is_waiting(self, key: Key) -> bool:
        """Say whether a wanted version is in no worker because there is no memory for it."""
        return key[1] in self.state.model(key[0]).waiting

    def is_away(self, key: Key) -> bool:
        """Say whether a wanted version is in no worker: waiting, or not brought back yet."""
        return key in self.restoring or self.is_waiting(key)

    def target(self) -> Target:
        """Return what every worker shall make true now, what most clients ask for first."""
        state = self.state
        versions = tuple(
            TargetVersion(
                model=key[0],
                version=key[1],
                manifest=self.records[key[0]][key[1]].manifest,
                inspection=self.inspection(key, entry.inspection),
                is_serving=entry.is_serving and key not in self.warming,
            )
            for key, entry in sorted(state.loaded.items(), key=lambda item: self._turn(item[0]))
            if not self.is_away(key)
        )
        routes = {
            name: in_force(model.route, model.waiting)
            for name, model in state.models.items()
            if model.route is not None
        }
        return Target(
            generation=state.generation,
            versions=versions,
            routes={name: route.traffic for name, route in routes.items()},
            aliases={
                name: {alias: entry.version for alias, entry in model.aliases.items()}
                for name, model in state.models.items()
                if model.aliases
            },
            catalog=self._catalog(),
            is_restored=self.is_restored,
            settings={
                name: model.settings
                for name, model in state.models.items()
                if model.settings != NO_SETTINGS
            },
            slots={
                name: route.slots for name, route in routes.items() if len(route.traffic.split) > 1
            },
        )

    def inspection(self, key: Key, document: JsonObject) -> Inspection:
        """Return the parsed inspection of a loaded version; parsed once."""
        cached = self._inspections.get(key)
        if cached is None or cached[0] is not document:
            cached = (document, parse_inspection(document))
            self._inspections[key] = cached
        return cached[1]

    def _turn(self, key: Key) -> tuple[int, int, Key]:
        """Return what sorts versions as a worker is to load them, small ones before large ones."""
        model, version = key
        size_bytes = self.records[model][version].disk_bytes
        return self.state.model(model).urgency(version), size_bytes, key

    def _catalog(self) -> dict[str, dict[int, CatalogEntry]]:
        catalog = {
            name: {number: self._catalog_entry(record) for number, record in records.items()}
            for name, records in self.records.items()
        }
        for name, model in self.state.models.items():
            # What failed because its record is lost must not look as if it had never been.
            for number in model.failed.keys() - self.records.get(name, {}).keys():
                lost = CatalogEntry(State.FAILED.value, model.failed[number], "", _NO_SIGNATURE)
                catalog.setdefault(name, {})[number] = lost
        return catalog

    def _catalog_entry(self, record: VersionRecord) -> CatalogEntry:
        key = (record.model, record.version)
        state, reason = self.status(key)
        entry = self.state.model(record.model).loaded.get(record.version)
        signature = record.manifest.signature
        if entry is not None:
            signature = self.inspection(key, entry.inspection).signature.to_json()
        return CatalogEntry(state.value, reason, record.digest, signature)

    async def _exclusively(self, work: Coroutine[Any, Any, T]) -> T:
        async def locked() -> T:
            async with self._lock:
                return await work

        task = asyncio.create_task(locked(), name="state-change")
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        # A caller that leaves between the write and the publish must not leave them apart.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for changes that have begun."""
        if self._commits:
            await asyncio.wait(self._commits)

    async def _change(
        self, changes: Sequence[Change], actor: Actor, reason: str, checks: Sequence[Check] = ()
    ) -> tuple[DesiredState, DesiredState]:
        before = after = self.state
        events: list[Event] = []
        for change in changes:
            note = Note(change.kind, change.model or None, change.version, actor, reason)
            stamp = self._stamp(note, ahead=len(events))
            old, after = after, change.apply(after, stamp)
            if after is not old:
                events.append(event_of(note, stamp, *difference(old, after, note.model)))
        for check in checks:
            check(before, after)
        if after is before:
            return before, after
        await self._switch(desired.at_once(before, after), events)
        return before, self.state

    async def _change_silently(
        self, apply: Callable[[DesiredState, Stamp], DesiredState]
    ) -> tuple[DesiredState, DesiredState]:
        before = self.state
        after = apply(before, self._stamp(None))
        if after is not before:
            await self._switch(after, [])
        return before, self.state

    async def _switch(self, after: DesiredState, events: Sequence[Event]) -> None:
        before = self.state
        await self._commit(after, events)
        self.swaps += moved_routes(before, after)
        self.fleet.publish(self.target())

    async def _announce(
        self, apply: Callable[[DesiredState], DesiredState] = desired.touched
    ) -> None:
        after = apply(self.state)
        if after is not self.state:
            self.state = after
            self.fleet.publish(self.target())

    async def _commit(self, after: DesiredState, events: Sequence[Event]) -> None:
        await self._log_late()
        if events:
            after = desired.with_events(after, tuple(event.to_json() for event in events))
        document = state_document.to_json(after)
        await asyncio.to_thread(self.store.write_document, DOCUMENT, document)
        self.state = after
        self._inspections = {k: v for k, v in self._inspections.items() if k in after.loaded}
        self._unlogged.extend(events)
        try:
            await self._log_late()
        except RegistryError:
            # The change itself is durable, its events inside; the next one appends them first.
            _log.exception("event %d could not be appended yet", self._unlogged[0].seq)

    async def _log_late(self) -> None:
        while self._unlogged:
            await asyncio.to_thread(self.store.events.append_if_missing, self._unlogged[0])
            del self._unlogged[0]

    async def _publish_version(
        self, manifest: Manifest, actor: Actor, reason: str
    ) -> tuple[VersionRecord, bool]:
        event: JsonObject = {
            "kind": "publish", "who": actor.name, "address": actor.address,
            "reason": reason[:MAX_REASON_CHARS],
        }  # fmt: skip
        await self._log_late()
        record, is_new = await asyncio.to_thread(self.store.publish, manifest, event)
        known = self.records.get(record.model, {})
        if record.version not in known:
            self.records[record.model] = dict(sorted({**known, record.version: record}.items()))
            await self._announce()
        return record, is_new

    async def _delete_version(self, model: str, version: int, actor: Actor, reason: str) -> None:
        record = self.records.get(model, {}).get(version)
        note = Note("delete", model, version, actor, reason)
        before: JsonObject = {"digest": record.digest if record is not None else None}
        event = event_of(note, self._stamp(note), before, None)
        is_last = not self.records.get(model, {}).keys() - {version}
        after = desired.delete(self.state, model, version, is_last=is_last)
        # The event is durable first: a start after a crash here finishes the deletion.
        await self._commit(after, [event])
        await self._finish_delete(model, version)
        if record is not None:
            del self.records[model][version]
            if not self.records[model]:
                del self.records[model]
        self.fleet.publish(self.target())

    async def _record_event(self, note: Note, after: Json) -> None:
        await self._commit(self.state, [event_of(note, self._stamp(note), None, after)])

    async def _finish_delete(self, model: str, version: int) -> None:
        try:
            await asyncio.to_thread(self.store.delete_version, model, version)
        except NotFound:
            return

    def _stamp(self, note: Note | None, ahead: int = 0) -> Stamp:
        return stamp_of(note, self._next_seq() + ahead)

    def _next_seq(self) -> int:
        late = self._unlogged[-1].seq if self._unlogged else 0
        return max(self.store.events.last_seq, late) + 1

    def _read_records(self) -> dict[str, dict[int, VersionRecord]]:
        return {
            model: {record.version: record for record in self.store.versions(model)}
            for model in self.store.models()
        }

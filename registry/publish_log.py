"""The events of published versions: what a crash keeps from the log is completed from the records.

A version's record holds the event of its publish until the log has it, so the two cannot part.
"""

from __future__ import annotations

import threading

from registry.events import Event, EventLog, parse_event
from registry.manifest import JsonObject
from registry.versions import VersionRecord, VersionTable


class PublishLog:
    """Compares records and log when made, and appends what the log lacks. Thread-safe."""

    def __init__(self, versions: VersionTable, events: EventLog) -> None:
        self._versions = versions
        self._events = events
        self._lock = threading.Lock()
        self._unlogged = self._compare()

    def add(self, record: VersionRecord, meta: JsonObject) -> None:
        """Take the event of a new version; ``complete`` appends it."""
        with self._lock:
            self._unlogged.append((record, meta))

    def complete(self) -> None:
        """Append what the log lacks. Raises StoreFull, StoreFailed; the rest is kept for later."""
        with self._lock:
            while self._unlogged:
                record, meta = self._unlogged[0]
                self._events.append_if_missing(_publish_event(meta, record))
                del self._unlogged[0]

    def lost(self) -> list[tuple[str, int]]:
        """Return the versions that were published and not deleted, and have no record."""
        present: set[tuple[str, int]] = set()
        for event in self._events.scan():
            if event.model and event.version and event.kind in ("publish", "delete"):
                change = present.add if event.kind == "publish" else present.discard
                change((event.model, event.version))
        records = {(record.model, record.version) for record in self._records()}
        return sorted(present - records - set(self._versions.damaged()))

    def _compare(self) -> list[tuple[VersionRecord, JsonObject]]:
        """Return the versions whose event a crash kept from the log, oldest first.

        The other way round, a number that the log knows stays used although its record is lost:
        aliases and clients may still mean that content by it.
        """
        missing = {
            (record.model, record.version, record.published): (record, meta)
            for record in self._records()
            if (meta := self._versions.event_of(record.model, record.version))
        }
        for event in self._events.scan():
            missing.pop((event.model or "", event.version or 0, event.time), None)
            if event.kind == "publish" and event.model and event.version:
                self._versions.never_give(event.model, event.version)
        return sorted(missing.values(), key=lambda entry: entry[0].published)

    def _records(self) -> list[VersionRecord]:
        table = self._versions
        return [record for model in table.models() for record in table.versions(model)]


def _publish_event(meta: JsonObject, record: VersionRecord) -> Event:
    """Return the event of a publish, which gets its number when it is appended."""
    facts: JsonObject = {
        "seq": 1,
        "time": record.published,
        "model": record.model,
        "version": record.version,
        "after": {"digest": record.digest},
    }
    return parse_event({**meta, **facts})

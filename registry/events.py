"""The durable record of every change: one JSON line an event, only ever appended to.

A line counts once its append returned. What a crash left behind the last whole line is cut off at
the next open, so that no later event is ever glued to half of an earlier one.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from registry.errors import InvalidInput, StoreFailed
from registry.files import Files, disk_errors
from registry.manifest import Json, JsonObject
from registry.reserve import Reserve

MAX_READ: Final = 10_000
# One remembered offset for so many events keeps the memory of a long record small, and lets a
# read start near its first event.
_INDEX_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class Event:
    """One change: what, to what, by whom and why. ``time`` is ISO UTC; ``seq`` strictly rises."""

    seq: int
    time: str
    kind: str
    model: str | None = None
    version: int | None = None
    who: str = ""
    address: str = ""
    reason: str = ""
    before: Json = None
    after: Json = None

    def to_json(self) -> JsonObject:
        """Return the document that ``parse_event`` reads."""
        return asdict(self)


def parse_event(document: object) -> Event:
    """Return the Event of a decoded document, or raise InvalidInput."""
    if not isinstance(document, dict):
        raise InvalidInput(f"event: expected a JSON object, got {type(document).__name__}")
    try:
        event = Event(**document)
    except TypeError as error:
        raise InvalidInput("event: unknown or missing fields") from error
    if type(event.seq) is not int or event.seq < 1 or not isinstance(event.kind, str):
        raise InvalidInput("event: seq must be an integer from 1 and kind a string")
    return event


def utc_now() -> str:
    """Return the wall clock as records carry it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventLog:
    """The record of one store. Thread-safe; an append blocks for one sync of the disk."""

    def __init__(
        self,
        path: Path,
        files: Files,
        *,
        is_read_only: bool = False,
        reserve: Reserve | None = None,
    ) -> None:
        self._path = path
        self._files = files
        self._reserve = reserve
        self._lock = threading.Lock()
        self._offsets: list[tuple[int, int]] = []  # (seq, offset of its line), sparse
        self._count = 0
        self._odd_lines = 0
        self._first_seq = 1
        self._last: Event | None = None
        self._end = 0
        self._is_tail_dirty = False
        self._descriptor: int | None = None
        self._scan()
        if not is_read_only:
            self._open()

    @property
    def last_seq(self) -> int:
        """The highest number given, 0 before the first event."""
        return self._last.seq if self._last else 0

    @property
    def damage(self) -> str:
        """What the file shows to be missing of the record, for a person; empty where nothing."""
        found = []
        if self._odd_lines:
            found.append(f"{self._odd_lines} lines are no events and are passed over")
        if self._first_seq > 1:
            found.append(f"it begins at number {self._first_seq}")
        return f"the record of changes is damaged: {'; '.join(found)}" if found else ""

    def append(
        self,
        kind: str,
        *,
        model: str | None = None,
        version: int | None = None,
        who: str = "",
        address: str = "",
        reason: str = "",
        before: Json = None,
        after: Json = None,
        seq: int | None = None,
        time: str | None = None,
    ) -> int:
        """Record an event durably and return its number, by default the next one.

        Raises InvalidInput where an explicit ``seq`` does not rise; StoreFull and StoreFailed,
        after which the record is as it was.
        """
        with self._lock:
            number = self.last_seq + 1 if seq is None else seq
            event = Event(
                number, time or utc_now(), kind, model, version, who, address, reason, before, after
            )
            self._write(event)
            return number

    def append_if_missing(self, event: Event) -> int:
        """Record ``event`` unless it is there already; return the number it has.

        For an event that was made durable elsewhere first (with the state it belongs to). Where its
        number went to another event meanwhile, it gets the next one.
        """
        with self._lock:
            if event.seq <= self.last_seq:
                for known in self._events_from(event.seq):
                    if replace(known, seq=event.seq) == event:
                        return known.seq
                event = replace(event, seq=self.last_seq + 1)
            self._write(event)
            return event.seq

    def read(self, since: int = 0, model: str | None = None, limit: int = 1000) -> list[Event]:
        """Return events with a number above ``since``, oldest first, at most ``limit``."""
        _check_limit(limit)
        found: list[Event] = []
        for event in self._events_from(since + 1):
            if model is None or event.model == model:
                found.append(event)
                if len(found) == limit:
                    break
        return found

    def newest(self, model: str | None = None, limit: int = 1000) -> list[Event]:
        """Return the last ``limit`` events, oldest first."""
        _check_limit(limit)
        # Without a model the numbers say where to begin; with one, all may have to be looked at.
        since = max(1, self.last_seq - limit + 1) if model is None else 1
        found = (e for e in self._events_from(since) if model is None or e.model == model)
        return list(deque(found, limit))

    def scan(self) -> Iterator[Event]:
        """Go through the whole record, oldest first."""
        return self._events_from(1)

    def close(self) -> None:
        """Close the file; appending raises from now on."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                self._files.close(descriptor)

    def _write(self, event: Event) -> None:
        if event.seq <= self.last_seq:
            raise InvalidInput(f"event number {event.seq} does not follow {self.last_seq}")
        try:
            line = json.dumps(event.to_json(), separators=(",", ":"), allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"event cannot be stored as JSON: {error}") from error
        if self._descriptor is None:
            raise StoreFailed("the record of events is closed or read-only")
        if self._reserve is None:
            self._append(self._descriptor, line + b"\n")
        else:
            descriptor = self._descriptor
            self._reserve.run(lambda: self._append(descriptor, line + b"\n"))
        self._note(event, len(line) + 1)

    def _append(self, descriptor: int, line: bytes) -> None:
        with disk_errors("record an event"):
            self._mend_tail(descriptor)
            self._append_line(descriptor, line)

    def _append_line(self, descriptor: int, line: bytes) -> None:
        # Until the sync returned, what was written does not count. It is cut off, so that the next
        # append writes and syncs those pages anew instead of trusting them.
        self._is_tail_dirty = True
        try:
            self._files.write(descriptor, line)
            self._files.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                self._mend_tail(descriptor)
            raise
        self._is_tail_dirty = False

    def _mend_tail(self, descriptor: int) -> None:
        if self._is_tail_dirty:
            self._files.truncate(descriptor, self._end)
            self._files.fsync(descriptor)
            self._is_tail_dirty = False

    def _note(self, event: Event, line_bytes: int) -> None:
        if self._count == 0:
            self._first_seq = event.seq
        if self._count % _INDEX_STEP == 0:
            self._offsets.append((event.seq, self._end))
        self._count += 1
        self._end += line_bytes
        self._last = event

    def _scan(self) -> None:
        """Find the last whole event. A damaged line before it is passed over, not cut."""
        with disk_errors("read the record of events"):
            try:
                size_bytes = self._path.stat().st_size
            except FileNotFoundError:
                return
            offset = odd_lines = 0
            for line in _lines(self._path, 0, size_bytes):
                event = _parse_line(line)
                if event is not None and event.seq > self.last_seq:
                    # What follows the last event was cut short by a crash, and is no damage.
                    self._odd_lines = odd_lines
                    self._end = offset
                    self._note(event, len(line))
                else:
                    odd_lines += 1
                offset += len(line)
        self._is_tail_dirty = size_bytes > self._end

    def _open(self) -> None:
        with disk_errors("open the record of events"):
            self._descriptor = self._files.open_append(self._path)
            self._mend_tail(self._descriptor)
            # The last line may be that of a server that died before it had synced it.
            self._files.fsync(self._descriptor)
            self._files.fsync_dir(self._path.parent)

    def _events_from(self, seq: int) -> Iterator[Event]:
        start, end = 0, self._end
        for known_seq, offset in reversed(self._offsets):
            if known_seq <= seq:
                start = offset
                break
        last_seq = 0
        with disk_errors("read the record of events"):
            for line in _lines(self._path, start, end) if end else ():
                event = _parse_line(line)
                if event is not None and event.seq > last_seq:
                    last_seq = event.seq
                    if event.seq >= seq:
                        yield event


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_READ:
        raise InvalidInput(f"limit {limit} is not allowed: use 1 to {MAX_READ}")


def _lines(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start, os.SEEK_SET)
        while start < end and (line := file.readline(end - start)):
            start += len(line)
            yield line


def _parse_line(line: bytes) -> Event | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return parse_event(json.loads(line))
    except (ValueError, RecursionError, InvalidInput):
        return None

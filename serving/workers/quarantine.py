"""Versions that killed too many workers are set aside, so that the next worker lives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from serving.fleet import VersionKey
from serving.target import Target
from serving.workers.deaths import MAX_DEATHS, DeathLedger, suspects
from serving.workers.slot import Slot

_log = logging.getLogger(__name__)


class Quarantine:
    """Who is blamed for the deaths of workers, and which versions no worker is told of any more.

    ``running``: the versions that the worker of a region was loading or running when it died.
    """

    def __init__(self, running: Callable[[int], Sequence[VersionKey]]) -> None:
        self._running = running
        self._ledger = DeathLedger()
        self._reasons: dict[VersionKey, str] = {}
        self._callbacks: list[Callable[[str, int, str], None]] = []

    @property
    def reasons(self) -> Mapping[VersionKey, str]:
        """The versions set aside, each with the reason."""
        return self._reasons

    def on_entry(self, callback: Callable[[str, int, str], None]) -> None:
        """Call ``callback(model, version, reason)`` when a version is set aside."""
        self._callbacks.append(callback)

    def follow(self, before: Collection[VersionKey], wanted: Collection[VersionKey]) -> None:
        """Take a change of what is wanted: what was away and is named again gets a new chance."""
        for key in wanted:
            if key not in before:
                self._reasons.pop(key, None)
        self._ledger.keep(wanted)

    def blame(self, slot: Slot, reason: str, *, is_from_outside: bool) -> None:
        """Hold the death of a slot's worker against versions; set aside for which it was the last.

        Says in ``slot.blamed`` which they are.
        """
        slot.blamed = suspects(
            slot.loading, self._running(slot.region), is_from_outside=is_from_outside
        )
        for key in self._ledger.record(slot.blamed):
            self._set_aside(key, reason)

    def without(self, target: Target | None) -> Target | None:
        """Return a target without the versions that would only kill the next worker, too."""
        if target is None or not self._reasons:
            return target
        safe = (v for v in target.versions if (v.model, v.version) not in self._reasons)
        return replace(target, versions=tuple(safe))

    def _set_aside(self, key: VersionKey, reason: str) -> None:
        model, version = key
        text = f"loading or running when {MAX_DEATHS} workers died; the last one {reason}"
        self._reasons[key] = text
        _log.error("quarantined", extra={"model": model, "version": version, "reason": text})
        for callback in self._callbacks:
            callback(model, version, text)

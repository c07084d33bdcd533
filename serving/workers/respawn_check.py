"""What the worker in place of a dead one would map is checked while it starts, not before.

An interpreter and its libraries take a second, and two gigabytes take as long to hash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final, Protocol

from registry.lifecycle import State
from serving.fleet import VersionKey
from serving.target import Target
from serving.workers.slot import Slot

WITHHELD: Final = "a worker died, and its objects are being compared with their digests"
_log = logging.getLogger(__name__)


class ObjectCheck(Protocol):
    """What knows whether the objects of versions are still what was stored.

    ``suspects``: versions that the dead worker was at when it could not read mapped memory.
    """

    async def doubtful(self, suspects: Collection[VersionKey]) -> frozenset[VersionKey]:
        """Return at once the versions that nobody should map before ``before_respawn`` is over."""
        ...

    async def before_respawn(self, suspects: Collection[VersionKey]) -> None:
        """Have what is damaged no longer wanted; may take seconds for each gigabyte."""
        ...


class RespawnChecks:
    """The checks under way. Without a ``check`` workers are told of everything at once.

    Where siblings answer meanwhile, a new worker is told nothing until its check is over. Where
    nobody else does, it is told at once of all versions but the doubtful ones.
    """

    def __init__(self) -> None:
        self.check: ObjectCheck | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, slot: Slot, suspects: frozenset[VersionKey]) -> None:
        """Check what the next worker of a slot would map; called before that is started."""
        slot.withheld = slot.owed = frozenset()
        if self.check is None:
            return
        slot.may_map.clear()
        task = asyncio.create_task(
            self._run(self.check, slot, slot.restarts, suspects), name=f"check {slot.index}"
        )
        # It outlives a worker that dies meanwhile: what is damaged is to be found all the same.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Begin no more, and give up those under way."""
        self.check = None
        for task in self._tasks:
            task.cancel()

    async def _run(
        self, check: ObjectCheck, slot: Slot, life: int, suspects: frozenset[VersionKey]
    ) -> None:
        try:
            if not slot.is_patient:
                _tell(slot, life, await check.doubtful(suspects))
            await check.before_respawn(suspects)
        except Exception:  # noqa: BLE001 - a failed check must not leave the slot empty
            _log.exception("the check before a respawn failed")
        _tell(slot, life, frozenset())


def without_withheld(target: Target | None, withheld: Collection[VersionKey]) -> Target | None:
    """Return a target without the versions whose objects are being checked."""
    if target is None or not withheld:
        return target
    versions = tuple(v for v in target.versions if (v.model, v.version) not in withheld)
    catalog = {
        model: {
            number: replace(entry, state=State.LOADING.value, reason=WITHHELD)
            if (model, number) in withheld and entry.state == State.READY
            else entry
            for number, entry in entries.items()
        }
        for model, entries in target.catalog.items()
    }
    return replace(target, versions=versions, catalog=catalog)


def _tell(slot: Slot, life: int, withheld: frozenset[VersionKey]) -> None:
    """Let the worker have the target, unless it is another one by now."""
    if slot.restarts == life:
        slot.withheld = withheld
        slot.owed |= withheld
        slot.may_map.set()
        slot.target_changed.set()

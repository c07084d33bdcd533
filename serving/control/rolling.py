"""The rolling restart: every worker replaced by a new one, one slot after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from registry.errors import Conflict, RegistryError
from registry.manifest import Json, JsonObject
from serving.auth import Actor
from serving.control.change_events import Note
from serving.control.ledger import Ledger
from serving.control.operations import Operation
from serving.control.state_writer import StateWriter
from serving.errors import MemoryShort, message_of
from serving.fleet import Fleet

# What a worker takes without any version: interpreter, libraries, buffers.
WORKER_BASE_BYTES: Final = 192 << 20
_log = logging.getLogger(__name__)


class RollingRestart:
    """Replaces the workers.

    ``available_bytes``: what the machine has left for more memory. ``check_objects``: makes
    versions FAILED whose objects are damaged, before a new worker maps them.
    """

    def __init__(
        self,
        writer: StateWriter,
        ledger: Ledger,
        fleet: Fleet,
        available_bytes: Callable[[], int],
        check_objects: Callable[[], Awaitable[None]],
    ) -> None:
        self._writer = writer
        self._ledger = ledger
        self._fleet = fleet
        self._available_bytes = available_bytes
        self._check_objects = check_objects

    def check(self, workers: int = 1) -> None:
        """Raise Conflict or MemoryShort where so many more workers cannot be started now."""
        if not self._writer.is_restored:
            raise Conflict(
                "the workers are still loading what was loaded before the start: try again when "
                "the server is ready"
            )
        self._check_memory(workers)

    async def run(self, operation: Operation, actor: Actor, reason: str) -> None:
        """Replace one worker after the other; each serves until its replacement does.

        Raises WorkerLost or MemoryShort where one could not be replaced: it serves on, those
        before it are new, and the operation says which. Log and record have both ends, and the log
        each worker.
        """
        began, slots = time.monotonic(), [worker.slot for worker in self._fleet.workers()]
        _log.info(
            "rolling restart of %d workers begins", len(slots),
            extra={"operation": operation.id, "who": actor.name, "reason": reason},
        )  # fmt: skip
        replaced: list[Json] = []
        try:
            for done, slot in enumerate(slots):
                operation.at(f"replacing worker {slot + 1} of {len(slots)}", done / len(slots))
                replaced.append(await self._replace(slot))
        except BaseException as error:
            why = message_of(error) if isinstance(error, Exception) else "the server stops"
            _log.warning(
                "rolling restart ends after %d of %d workers, the others serve on: %s",
                len(replaced), len(slots), why, extra={"operation": operation.id},
            )  # fmt: skip
            if isinstance(error, Exception):
                facts: JsonObject = {"workers": len(slots), "failed": why, "replaced": replaced}
                await self._record(Note("restart_failed", None, None, actor, reason), facts)
            raise
        seconds = round(time.monotonic() - began, 3)
        _log.info(
            "rolling restart is over: %d workers are new after %.1f s", len(slots), seconds,
            extra={"operation": operation.id},
        )  # fmt: skip
        facts = {"workers": len(slots), "seconds": seconds, "replaced": replaced}
        await self._record(Note("restart", None, None, actor, reason), facts)

    async def _replace(self, slot: int) -> JsonObject:
        """Replace one worker; return its slot, both process ids, and the seconds that it took."""
        self._check_memory()
        await self._check_objects()
        began, old = time.monotonic(), self._pid(slot)
        await self._fleet.replace(slot)
        seconds, new = round(time.monotonic() - began, 3), self._pid(slot)
        _log.info(
            "worker of slot %d is new: process %s -> %s in %.1f s", slot, old, new, seconds,
            extra={"slot": slot, "old_pid": old, "pid": new, "seconds": seconds},
        )  # fmt: skip
        return {"slot": slot, "old_pid": old, "pid": new, "seconds": seconds}

    def _pid(self, slot: int) -> int | None:
        return next((w.pid for w in self._fleet.workers() if w.slot == slot), None)

    async def _record(self, note: Note, facts: JsonObject) -> None:
        try:
            await self._writer.record_event(note, facts)
        except RegistryError as error:
            # The workers are as they are whether or not the disk takes a note of it.
            _log.warning("the restart could not be recorded: %s", error)

    def _check_memory(self, workers: int = 1) -> None:
        """Raise MemoryShort unless so many more fit: for a while there are two of a slot."""
        held = self._ledger.held().values()
        private = sum(item.private_bytes_per_worker or 0 for item in held)
        needs, free = workers * (private + WORKER_BASE_BYTES), self._available_bytes()
        if needs > free:
            raise MemoryShort(
                f"{workers} new workers beside the old ones need {needs} bytes of private memory, "
                f"and {free} are free: unload a version, or stop and start the server"
            )

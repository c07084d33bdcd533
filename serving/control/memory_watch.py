"""Holds what workers measure against the budget, and proves that unloads gave their memory back.

A load is admitted by an estimate; what the workers measure may be more. Then the sum stands over
the budget: the ledger says so, nothing more is admitted, what is READY serves on, and an event says
what an unload would give. Nothing is unloaded by itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from models.memory import mapped_bytes
from registry.budget import Excess
from registry.desired import Key
from registry.errors import RegistryError
from registry.ident import digest_hex
from registry.lifecycle import State
from serving.auth import SERVER
from serving.control.change_events import Note
from serving.control.ledger import Ledger, Unload
from serving.control.residency import Residency
from serving.control.state_writer import StateWriter
from serving.fleet import SERVING, VersionReport

_log = logging.getLogger(__name__)


class MemoryWatch:
    """For the event loop's thread."""

    def __init__(self, writer: StateWriter, ledger: Ledger, residency: Residency) -> None:
        self._writer = writer
        self._ledger = ledger
        self._residency = residency
        self._said_bytes = 0
        # By how much versions took more than was known of them, since all was within the budget.
        self._grown: dict[Key, int] = {}

    async def measured(self, reports: Mapping[Key, VersionReport]) -> None:
        """Take what workers measured into the ledger; tell where that puts it over the budget."""
        for key, report in reports.items():
            if report.state == State.READY and (
                more := self._ledger.measure(key, report.private_bytes, report.private_by_worker)
            ):
                self._grown[key] = self._grown.get(key, 0) + more
        excess = self._ledger.excess()
        if not excess.over_bytes:
            self._grown.clear()
        if excess.over_bytes <= self._said_bytes:
            # Less than was told is no news; back within the budget, the next time is.
            self._said_bytes = excess.over_bytes
        elif all(entry.is_serving for entry in self._writer.state.loaded.values()):
            # Not before a load under way has ended: what it loads could go as well.
            self._said_bytes = excess.over_bytes
            await self._tell(excess)

    async def _tell(self, excess: Excess) -> None:
        cause, name, version = "", None, None
        if self._grown:
            name, version = key = max(self._grown, key=self._grown.__getitem__)
            cause = (
                f"; {name}/{version} takes {self._grown[key]} more in each worker than was known"
            )
        reason = (
            f"what is loaded takes {excess.committed_bytes} bytes, {excess.over_bytes} more than "
            f"the budget of {excess.budget_bytes}{cause}: it serves on, and nothing more is "
            f"loaded: {excess.way_out}"
        )
        _log.warning("over the memory budget: %s", reason, extra=excess.to_json())
        try:
            note = Note("over_budget", name, version, SERVER, reason)
            await self._writer.record_event(note, excess.to_json())
        except RegistryError as error:
            _log.error("the event of it is not recorded: %s", error)

    async def prove_unload(self, key: Key, own_objects: frozenset[str]) -> None:
        """Note what an unload left behind: in each worker's heap, and mapped in any process."""
        fleet = self._writer.fleet
        workers = [worker for worker in fleet.workers() if worker.state == SERVING]
        measured = fleet.unreleased(key)
        pids = [os.getpid(), *(worker.pid for worker in workers if worker.pid is not None)]
        try:
            left_mapped = await self._residency.quietly(_still_mapped, pids, own_objects)
        except OSError as error:
            why = f"the maps of a worker cannot be read: {error.strerror}"
            self._ledger.last_unload = Unload(key, None, why)
            return
        missing = [worker.slot for worker in workers if worker.slot not in measured]
        if missing:
            why = f"the workers in slots {missing} were replaced and did not measure it"
            self._ledger.last_unload = Unload(key, None, why)
        else:
            self._ledger.last_unload = Unload(key, sum(measured.values()) + left_mapped)


def _still_mapped(pids: Iterable[int], digests: Iterable[str]) -> int:
    names = {digest_hex(digest) for digest in digests}
    return sum(mapped_bytes(pid, names) for pid in pids)

"""Packed weights of loaded versions: made anew after a start, proved to save, left when damaged.

What was packed is a cache. A version never fails for it: it is packed again, or opened as it was
published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from models.computed import is_onnx
from models.errors import LoadFailed, ModelsError
from models.servable import Inspection
from registry import desired
from registry.desired import Key
from registry.errors import RegistryError
from registry.manifest import Manifest
from serving.auth import SERVER
from serving.control.change_events import Note
from serving.control.state_writer import StateWriter
from serving.errors import ServingError
from serving.fleet import VersionReport

# Of what was packed, a worker that copies more than this share for itself did not use it.
MAX_COPIED: Final = 0.3
DAMAGED: Final = "what was packed is damaged"
NOT_AGAIN: Final = "it could not be packed again"
_log = logging.getLogger(__name__)


class PackedForms:
    """Keeps what the state says of packed versions true; for the event loop's thread.

    ``memory_bytes``: private memory that packing anew may take. ``hold``: called when workers are
    to read other objects of a version than before.
    """

    def __init__(
        self, writer: StateWriter, memory_bytes: int, hold: Callable[[Key], Awaitable[None]]
    ) -> None:
        self._writer = writer
        self._memory_bytes = memory_bytes
        self._hold = hold

    async def renew(self, key: Key, inspect: Callable[[Manifest, int], Inspection]) -> None:
        """Pack again what another machine packed, and what is damaged or no longer there.

        What was inspected on this machine is remembered, so that only what another processor or
        runtime might answer otherwise takes time here. Such a version served before and still does:
        it is told only. A library of its own would have to be asked at every start, and is not.
        """
        known = self._known(key)
        manifest = self._writer.record(*key).manifest
        if not is_onnx(manifest):
            return
        try:
            found = await asyncio.to_thread(inspect, manifest, self._memory_bytes)
        except LoadFailed as error:
            if not known.graph and not _is_makeshift(known):
                return  # nothing was packed of it that could be missed
            reason = f"{NOT_AGAIN}; the next load or start tries again: {error}"
            _log.warning("%s/%d is opened as it was published: %s", *key, reason)
            found = _as_published(known, reason)
        if found.drift and found.drift != known.drift:
            await self._tell_drift(key, found)
        elif _facts(found) != _facts(known) or (_is_makeshift(known) and found != known):
            await self._replace(key, found)

    async def prove(self, key: Key, report: VersionReport) -> None:
        """Say so where a worker copied the weights that were packed to spare it that."""
        known = self._known(key)
        packed_bytes = sum(known.resident.values())
        copied_bytes = report.private_bytes - known.private_bytes
        if known.mode == "packed" and copied_bytes > MAX_COPIED * packed_bytes:
            reason = (
                f"the runtime did not use what was packed: a worker took {report.private_bytes} "
                "bytes for itself"
            )
            _log.warning("%s/%d is private: %s", *key, reason)
            await self._replace(key, replace(known, mode="private", mode_reason=reason))

    def objects(self, key: Key) -> frozenset[str]:
        """Return what was packed of a version that is loaded."""
        known = self._known(key)
        return frozenset({known.graph, *known.resident}) if known.graph else frozenset()

    async def check(self, key: Key, *, is_thorough: bool = False) -> None:
        """Have a version opened as it was published where what was packed of it is damaged.

        ``is_thorough``: hash also what nobody touched. Workers that mapped the damage load the
        version anew; those that have copied what they need go on with it. The next load or start
        packs again.
        """
        if key not in self._writer.state.loaded:
            return
        packed = sorted(self.objects(key))
        try:
            await asyncio.to_thread(self._writer.store.verify_objects, packed, thorough=is_thorough)
        except RegistryError as error:
            reason = f"{DAMAGED}; the next load or start packs it again: {error}"
            published = _as_published(self._known(key), reason)
            _log.warning("%s/%d is %s: %s", *key, published.mode, reason)
            try:
                await self._replace(key, published)
            except (RegistryError, ServingError, ModelsError) as failure:
                # A worker is started all the same, or none ever would.
                _log.error("%s/%d stays as it is: %s", *key, failure)

    def _known(self, key: Key) -> Inspection:
        return self._writer.inspection(key, self._writer.state.loaded[key].inspection)

    async def _tell_drift(self, key: Key, found: Inspection) -> None:
        """Keep a version that served before, and say that it answers otherwise here."""
        _log.warning("%s/%d serves although %s", *key, found.drift)
        try:
            await self._replace(key, found, Note("drifted", *key, SERVER, found.drift))
        except (RegistryError, ServingError) as error:
            _log.error("%s/%d: its drift is not recorded: %s", *key, error)

    async def _replace(self, key: Key, inspection: Inspection, note: Note | None = None) -> None:
        document = inspection.to_json()
        await self._writer.change(lambda s, _: desired.reinspect(s, *key, document), note)
        await self._hold(key)


def _facts(inspection: Inspection) -> tuple[object, ...]:
    return inspection.graph, inspection.resident, inspection.drift


def _is_makeshift(inspection: Inspection) -> bool:
    """Tell whether a version is held so only because what was packed of it was lost."""
    return inspection.mode_reason.startswith((DAMAGED, NOT_AGAIN))


def _as_published(known: Inspection, reason: str) -> Inspection:
    """Return a form that nothing has to be built for, and that shares what can be shared.

    Its kernels are others, with which nobody tried batches.
    """
    if known.mode == "private":
        return replace(known, mode_reason=reason, graph="", resident={})
    return replace(
        known, mode="mapped", mode_reason=reason, graph="", resident={}, has_prepacking=False,
        is_batchable=False, batch_reason=reason,
    )  # fmt: skip

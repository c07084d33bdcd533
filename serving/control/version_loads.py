"""How versions come into memory and leave it: load, unload, restore after a start.

A load goes: verify the objects, inspect in a throwaway child, admit to the budget, bring every byte
into RAM, let every worker map it without answering, then let it answer in all of them at once.
Until the last step nothing that serves knows of it, so a load that fails changes nothing but its
own version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from models.errors import LoadFailed, MemoryExceeded
from models.servable import Inspection
from registry import desired
from registry.desired import DesiredState, Key
from registry.errors import OverBudget, RegistryError
from registry.ident import digest_hex
from registry.lifecycle import State
from registry.manifest import Manifest
from registry.rollout import Stamp
from serving.auth import SERVER, Actor
from serving.control.change_events import Note
from serving.control.footprints import objects_of
from serving.control.ledger import Ledger
from serving.control.load_failures import LoadFailures
from serving.control.memory_watch import MemoryWatch
from serving.control.object_check import ObjectCheck
from serving.control.operations import Operation
from serving.control.packed_forms import PackedForms
from serving.control.residency import Residency
from serving.control.restore_order import ROOM_AGAIN, restore_batches, waiting_for_memory
from serving.control.state_writer import StateWriter
from serving.control.worker_versions import PLANNED, WorkerVersions
from serving.errors import DeadlineExpired, message_of

# What an inspection may take beside what is left of the budget: the runtime and numpy at work, and
# the graph as the parser and the runtime hold it.
_LEAST_BYTES: Final = 64 << 20
_GRAPH_FACTOR: Final = 4
_log = logging.getLogger(__name__)

# Blocking: inspects a version in a child process within so many bytes of private memory.
Inspector = Callable[[Manifest, int], Inspection]


class VersionLoads:
    """Runs a few loads at a time, and one operation at a time on each version.

    ``failures``: takes out what cannot serve. ``objects``: looks for what is damaged.
    ``load_s``: seconds that the last load of each version took.
    """

    def __init__(
        self,
        writer: StateWriter,
        ledger: Ledger,
        residency: Residency,
        inspect: Inspector,
        *,
        concurrent_loads: int,
        inspect_memory_bytes: int,
        load_timeout_s: float,
        drain_timeout_s: float,
    ) -> None:
        self._writer = writer
        self._ledger = ledger
        self._residency = residency
        self._watch = MemoryWatch(writer, ledger, residency)
        self._workers = WorkerVersions(
            writer, ledger, residency, self._watch,
            load_timeout_s=load_timeout_s, drain_timeout_s=drain_timeout_s,
        )  # fmt: skip
        self.failures = LoadFailures(writer, self._workers)
        self._inspect = inspect
        self._forms = PackedForms(writer, ledger.budget_bytes, self._hold)
        self._inspect_memory_bytes = inspect_memory_bytes
        self._few_loads = asyncio.Semaphore(concurrent_loads)
        # A lock lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self.load_s = self._workers.load_s
        self.caught_up = self._workers.caught_up
        self.objects = ObjectCheck(
            writer, self._forms, residency.quietly, self._workers.is_held, self.failures.take_out
        )
        self.loads_ended: dict[str, int] = {"succeeded": 0, "failed": 0}

    async def load(self, operation: Operation, actor: Actor, reason: str) -> None:
        """Bring a version to READY, or raise why not and leave it FAILED.

        One that was loaded before and waits for memory goes on waiting where there is still none.
        """
        key = (operation.model, operation.version)
        async with self._one_operation(key):
            if self._writer.status(key)[0] is State.READY:
                return
            operation.at("waiting for another load", 0.0)
            async with self._few_loads:
                began_s = time.monotonic()
                was_waiting = self._writer.is_waiting(key)
                try:
                    if was_waiting:
                        await self._try_again(key, Note("load", *key, actor, reason))
                    elif key in self._writer.restoring:
                        for error in (await self._bring_back([key])).values():
                            raise error
                    else:
                        await self._load(key, operation, actor, reason)
                except PLANNED as error:
                    self.loads_ended["failed"] += 1
                    if not was_waiting:
                        await self.failures.give_up(key, error, "load_failed", actor)
                    raise
                finally:
                    self._ledger.unreserve(key)
                    await self._let_go_unheld(key)
                self.loads_ended["succeeded"] += 1
                self.load_s[key] = time.monotonic() - began_s

    async def unload(self, operation: Operation, actor: Actor, reason: str) -> None:
        """Take a version out of memory; ends when every worker has given it back."""
        key = (operation.model, operation.version)
        async with self._one_operation(key):
            model = self._writer.state.model(key[0])
            if key[1] in model.loaded or key[1] in model.failed:
                operation.at("draining", 0.1)
                note = Note("unload", *key, actor, reason)
                own = self._ledger.own_objects(key) if self._workers.is_held(key) else None
                await self._workers.take_away(
                    key, lambda: self._writer.change(lambda s, _: desired.unload(s, *key), note)
                )
                await self._workers.drained(key)
                if own is not None:
                    await self._watch.prove_unload(key, own)
                return
            await self._workers.drained(key)

    def _one_operation(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _load(self, key: Key, operation: Operation, actor: Actor, reason: str) -> None:
        writer, ledger = self._writer, self._ledger
        manifest = writer.record(*key).manifest
        operation.at("looking for room", 0.01)
        await self._workers.drained(key)
        plan = ledger.reserve(key)
        operation.at("verifying", 0.02)
        await self._residency.quietly(
            writer.store.verify_objects,
            manifest.object_digests,
            progress=_progress(operation, manifest.weight_bytes, 0.02, 0.3),
        )
        operation.at("inspecting", 0.3)
        limit_bytes = self._inspect_memory_bytes or max(
            plan.free_bytes - plan.new_bytes, self._least_to_inspect(manifest)
        )
        try:
            inspection = await self._residency.quietly(self._inspect, manifest, limit_bytes)
        except MemoryExceeded as error:
            if not self._inspect_memory_bytes:
                # The limit was the room that is left: what would make more of it is the answer.
                raise ledger.without_room(key, limit_bytes) from error
            raise MemoryExceeded(
                f"{error}: raise the setting inspect_memory if the machine has more"
            ) from error
        if inspection.drift:
            raise LoadFailed(inspection.drift)
        ledger.reserve(key, inspection)
        operation.at("bringing its weights into RAM", 0.5)
        objects = inspection.resident or objects_of(writer.record(*key))
        progress = _progress(operation, sum(objects.values()), 0.5, 0.6)
        await self._residency.hold(key, objects, progress)
        operation.at("loading in the workers", 0.6)
        document = inspection.to_json()

        def begin(state: DesiredState, _: Stamp) -> DesiredState:
            writer.record(*key)  # it may have been deleted since the load began
            return desired.begin_load(state, *key, document)

        await writer.change(begin, None)
        await self._forms.prove(key, await self._workers.loaded(key))
        operation.at("switching on", 0.95)
        note = Note("load", *key, actor, reason)
        await writer.change(lambda s, stamp: desired.finish_load(s, *key, stamp), note)
        await self._workers.loaded(key)

    def _least_to_inspect(self, manifest: Manifest) -> int:
        """Return what an inspection may take although the budget leaves less.

        It opens a graph in several ways, so it needs more than what it is about to find out, and
        what is found out is what the budget is asked for then.
        """
        path = self._writer.store.objects_dir / digest_hex(manifest.graph)
        with contextlib.suppress(FileNotFoundError):
            return _LEAST_BYTES + _GRAPH_FACTOR * path.lstat().st_size
        return _LEAST_BYTES

    async def _try_again(self, key: Key, note: Note) -> None:
        """Bring back what waits for memory, or raise why not: it waits on, or FAILED otherwise."""
        try:
            await self._load_again(key, note)
        except PLANNED as error:
            is_short = self.failures.is_short(key, error)
            # It is as it was: that it waits was told, and READY it has not been.
            await self.failures.let_wait(key, message_of(error), None)
            if not is_short:
                await self.failures.give_up(key, error, "load_failed", note.actor)
            raise

    async def _load_again(self, key: Key, note: Note) -> None:
        """Bring back what waited for memory, as a start does, and record that it is loaded."""
        writer = self._writer
        await self._workers.drained(key)
        writer.restoring.add(key)
        await writer.announce(lambda s: desired.has_memory(s, *key))
        for error in (await self._bring_back([key])).values():
            raise error
        is_by_itself = note.actor is SERVER

        def finish(state: DesiredState, stamp: Stamp) -> DesiredState:
            return desired.finish_load(state, *key, stamp, is_by_itself=is_by_itself)

        try:
            # A route that follows the latest version goes on to it.
            await writer.change(finish, note)
        except RegistryError as error:
            _log.error("%s/%d is loaded again, which is not recorded: %s", *key, error)

    async def _bring_back(self, keys: Sequence[Key]) -> dict[Key, Exception]:
        """Load again what was loaded before the start; it is in the state already.

        Returns those that could not be, with the reason; they are still to be made FAILED.
        """
        writer = self._writer
        failed: dict[Key, Exception] = {}
        try:
            for key in keys:
                try:
                    digests = writer.record(*key).manifest.object_digests
                    await self._residency.quietly(writer.store.verify_objects, digests)
                    await self._forms.renew(key, self._inspect)
                    self._ledger.admit_again(key)
                    await self._hold(key)
                except PLANNED as error:
                    failed[key] = error
                else:
                    writer.warming.add(key)
                    writer.restoring.discard(key)
            for is_answering in (False, True):
                if is_answering:
                    writer.warming.difference_update(keys)
                if len(failed) < len(keys):
                    await writer.announce()
                    failed |= await self._not_loaded([k for k in keys if k not in failed])
        finally:
            writer.warming.difference_update(keys)
        return failed

    async def _not_loaded(self, keys: Sequence[Key]) -> dict[Key, Exception]:
        """Return those of the versions that the workers do not hold, with the reason."""
        failed: dict[Key, Exception] = {}
        try:
            reports = await self._workers.settled()
        except PLANNED as error:
            return dict.fromkeys(keys, error)
        for key in keys:
            try:
                await self._forms.prove(key, self._workers.check_loaded(key, reports))
            except PLANNED as error:
                failed[key] = error
        return failed

    async def _hold(self, key: Key) -> None:
        """Have in RAM what the state says that workers read of a version, and nothing else."""
        writer = self._writer
        entry = writer.state.loaded.get(key)
        if entry is None:
            return
        inspection = writer.inspection(key, entry.inspection)
        await self._residency.hold(key, inspection.resident or objects_of(writer.record(*key)))
        # Not every caller keeps an unload away meanwhile.
        await self._let_go_unheld(key)

    async def restore(self) -> None:
        """Load again everything that the state wants, what answers most first."""
        refused: set[Key] = set()
        for batch in restore_batches(self._writer):
            async with contextlib.AsyncExitStack() as stack:
                for key in batch:
                    await stack.enter_async_context(self._one_operation(key))
                await stack.enter_async_context(self._few_loads)
                keys = [key for key in batch if key in self._writer.restoring]
                refused |= await self._restore(keys)
            # Before what answers less comes to take it.
            for key in filter(refused.__contains__, waiting_for_memory(self._writer)):
                await self._use_room_left(key)
        self._writer.is_restored = True
        await self._writer.announce()

    async def _use_room_left(self, key: Key) -> None:
        """Bring back what the budget refused, if another failed after it and left room for it."""
        async with self._one_operation(key), self._few_loads:
            is_waiting = self._writer.is_waiting(key)
            if not (is_waiting and self._ledger.has_room_again(self._writer.record(*key))):
                return
            began_s = time.monotonic()
            try:
                await self._try_again(key, Note("load", *key, SERVER, ROOM_AGAIN))
            except PLANNED as error:
                _log.warning("%s/%d: there seemed to be room for it again: %s", *key, error)
            else:
                self.load_s[key] = time.monotonic() - began_s
            finally:
                await self._let_go_unheld(key)

    async def _restore(self, keys: Sequence[Key]) -> set[Key]:
        """Bring back a batch; return those of it that the budget refused."""
        began_s = time.monotonic()
        failed = await self._bring_back(keys)
        late: list[Key] = []
        for key in keys:
            if isinstance(failed.get(key), DeadlineExpired) and len(keys) > 1:
                # Which of them took the time is not known, so each gets a time of its own.
                late.append(key)
                self._writer.restoring.add(key)
            elif key in failed:
                await self.failures.give_up(key, failed[key], "restore_failed", SERVER)
                await self._let_go_unheld(key)
            else:
                self.load_s[key] = (time.monotonic() - began_s) / len(keys)
        refused = {key for key, error in failed.items() if isinstance(error, OverBudget)}
        for key in late:
            refused |= await self._restore([key])
        return refused

    async def _let_go_unheld(self, key: Key) -> None:
        """Unmap a version that a load brought into RAM and that then did not come to be loaded."""
        writer = self._writer
        is_wanted = key in writer.state.loaded and not writer.is_waiting(key)
        if not is_wanted and key not in writer.draining:
            await self._residency.release(key)


def _progress(
    operation: Operation, total_bytes: int, low: float, high: float
) -> Callable[[int], None]:
    """Return a callback that moves the operation from ``low`` to ``high`` as bytes are read."""
    total_bytes = max(1, total_bytes)

    def done(read_bytes: int) -> None:
        share = min(1.0, read_bytes / total_bytes)
        operation.progress = max(operation.progress, low + (high - low) * share)

    return done

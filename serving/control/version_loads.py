"""How versions come into memory and leave it: load, unload, restore after a start, failure.

A load goes: verify the objects, inspect in a throwaway child, admit to the budget, bring every byte
into RAM, let every worker map it without answering, then let it answer in all of them at once.
Until the last step nothing that serves knows of it, so a load that fails changes nothing but its
own version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from models.errors import LoadFailed, MemoryExceeded, ModelsError
from models.memory import mapped_bytes
from models.servable import Inspection
from registry import desired
from registry.desired import DesiredState, Key
from registry.errors import Conflict, RegistryError
from registry.ident import digest_hex
from registry.lifecycle import State
from registry.manifest import Manifest
from registry.rollout import Stamp
from serving.auth import SERVER, Actor
from serving.control.ledger import Ledger, Unload, objects_of
from serving.control.operations import Operation
from serving.control.packed_forms import PackedForms
from serving.control.residency import Residency
from serving.control.restore_order import restore_batches
from serving.control.state_writer import Note, StateWriter
from serving.errors import DeadlineExpired, ServingError, message_of
from serving.fleet import SERVING, VersionReport

# What an inspection may take beside what is left of the budget: the runtime and numpy at work, and
# the graph as the parser and the runtime hold it.
_LEAST_BYTES: Final = 64 << 20
_GRAPH_FACTOR: Final = 4
# How much longer than the drain itself an unload waits for the workers to say that it is over.
DRAIN_GRACE_S: Final = 30.0
PLANNED: Final = (RegistryError, ModelsError, ServingError)
_log = logging.getLogger(__name__)

# Blocking: inspects a version in a child process within so many bytes of private memory.
Inspector = Callable[[Manifest, int], Inspection]


class VersionLoads:
    """Runs a few loads at a time, and one operation at a time on each version."""

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
        self._inspect = inspect
        self._forms = PackedForms(writer, ledger.budget_bytes, self._hold)
        self._inspect_memory_bytes = inspect_memory_bytes
        self._load_timeout_s = load_timeout_s
        self._drain_timeout_s = drain_timeout_s + DRAIN_GRACE_S
        self._few_loads = asyncio.Semaphore(concurrent_loads)
        self._one_operation: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.load_s: dict[Key, float] = {}
        self.loads_ended: dict[str, int] = {"succeeded": 0, "failed": 0}

    async def load(self, operation: Operation, actor: Actor, reason: str) -> None:
        """Bring a version to READY, or raise why not and leave it FAILED."""
        key = (operation.model, operation.version)
        async with self._one_operation[key]:
            if self._writer.status(key)[0] is State.READY:
                return
            operation.at("waiting for another load", 0.0)
            async with self._few_loads:
                began_s = time.monotonic()
                try:
                    if key in self._writer.restoring:
                        failed = await self._bring_back([key])
                        for error in failed.values():
                            raise error
                    else:
                        await self._load(key, operation, actor, reason)
                except PLANNED as error:
                    self.loads_ended["failed"] += 1
                    await self.fail(key, message_of(error), "load_failed", actor)
                    raise
                finally:
                    self._ledger.unreserve(key)
                    await self._let_go_unheld(key)
                self.loads_ended["succeeded"] += 1
                self.load_s[key] = time.monotonic() - began_s

    async def unload(self, operation: Operation, actor: Actor, reason: str) -> None:
        """Take a version out of memory; ends when every worker has given it back."""
        key = (operation.model, operation.version)
        async with self._one_operation[key]:
            model = self._writer.state.model(key[0])
            if key[1] in model.loaded or key[1] in model.failed:
                operation.at("draining", 0.1)
                note = Note("unload", *key, actor, reason)
                own = self._ledger.own_objects(key) if key[1] in model.loaded else None
                await self._take_away(key, note, lambda s, _: desired.unload(s, *key))
                await self._drained(key)
                if own is not None:
                    await self._measure_unload(key, own)
                return
            await self._drained(key)

    async def _load(self, key: Key, operation: Operation, actor: Actor, reason: str) -> None:
        writer, ledger = self._writer, self._ledger
        manifest = writer.record(*key).manifest
        operation.at("looking for room", 0.01)
        await self._drained(key)
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
            raise
        if inspection.drift:
            raise LoadFailed(inspection.drift)
        ledger.inspected(key, inspection)
        ledger.reserve(key)
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
        await self._forms.prove(key, await self._loaded(key))
        operation.at("switching on", 0.95)
        note = Note("load", *key, actor, reason)
        await writer.change(lambda s, stamp: desired.finish_load(s, *key, stamp), note)
        await self._loaded(key)

    def _least_to_inspect(self, manifest: Manifest) -> int:
        """Return what an inspection may take although the budget leaves less.

        It opens a graph in several ways, so it needs more than what it is about to find out, and
        what is found out is what the budget is asked for then.
        """
        path = self._writer.store.objects_dir / digest_hex(manifest.graph)
        with contextlib.suppress(FileNotFoundError):
            return _LEAST_BYTES + _GRAPH_FACTOR * path.lstat().st_size
        return _LEAST_BYTES

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
                    self._ledger.admit_again(key, writer.restoring)
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
            reports = await self._settled(self._writer.state.generation, self._load_timeout_s)
        except PLANNED as error:
            return dict.fromkeys(keys, error)
        for key in keys:
            try:
                await self._forms.prove(key, self._check_loaded(key, reports))
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
        for batch in restore_batches(self._writer):
            async with contextlib.AsyncExitStack() as stack:
                for key in batch:
                    await stack.enter_async_context(self._one_operation[key])
                await stack.enter_async_context(self._few_loads)
                await self._restore([key for key in batch if key in self._writer.restoring])
        self._writer.is_restored = True
        await self._writer.announce()

    async def _restore(self, keys: Sequence[Key]) -> None:
        began_s = time.monotonic()
        failed = await self._bring_back(keys)
        late: list[Key] = []
        for key in keys:
            if isinstance(failed.get(key), DeadlineExpired) and len(keys) > 1:
                # Which of them took the time is not known, so each gets a time of its own.
                late.append(key)
                self._writer.restoring.add(key)
            elif key in failed:
                _log.error("%s/%d does not come back: %s", *key, failed[key])
                await self.fail(key, message_of(failed[key]), "restore_failed", SERVER)
                await self._let_go_unheld(key)
            else:
                self.load_s[key] = (time.monotonic() - began_s) / len(keys)
        for key in late:
            await self._restore([key])

    async def check_objects(self) -> None:
        """Compare the objects of all loaded versions with their digests; damaged ones FAIL.

        Called before a worker is started in place of another: it would map the damage.
        Does not wait for the workers, for it is one of them that waits for this.
        """
        for key in sorted(self._writer.state.loaded):
            if key not in self._writer.state.loaded or key in self._writer.restoring:
                continue
            try:
                digests = self._writer.record(*key).manifest.object_digests
                await asyncio.to_thread(self._writer.store.verify_objects, digests)
            except RegistryError as error:
                await self._take_out_damaged(key, message_of(error))
            else:
                await self._forms.check(key)

    async def _take_out_damaged(self, key: Key, reason: str) -> None:
        try:
            await self.take_out(key, reason, "damaged", SERVER)
        except PLANNED as error:
            # The state cannot be written: the worker is started all the same, or none ever would.
            _log.error("%s/%d is damaged and stays loaded: %s", *key, error)

    async def fail(self, key: Key, reason: str, kind: str, actor: Actor) -> None:
        """Make a version FAILED, and wait until the workers gave it back."""
        try:
            await self.take_out(key, reason, kind, actor)
            await self._drained(key)
        except PLANNED as error:
            # The first failure is the one to tell; this one only delays that memory comes back.
            _log.warning("%s/%d failed and could not be cleared away: %s", *key, error)

    async def take_out(self, key: Key, reason: str, kind: str, actor: Actor) -> None:
        """Make a version FAILED in the state and in what is published, without waiting."""
        writer = self._writer
        if key[1] not in writer.records.get(key[0], {}):
            return
        present = writer.state.model(key[0])
        if key[1] not in present.loaded and present.failed.get(key[1]) == reason:
            return
        note = Note(kind, *key, actor, reason)
        await self._take_away(key, note, lambda s, stamp: desired.fail(s, *key, reason, stamp))
        writer.restoring.discard(key)

    async def _take_away(
        self, key: Key, note: Note, apply: Callable[[DesiredState, Stamp], DesiredState]
    ) -> None:
        """Change the state so that a version leaves it; its memory counts until it comes back."""
        writer = self._writer
        was_held = key in writer.state.loaded and key not in writer.restoring
        if was_held:
            self._ledger.leave(key)
        try:
            await writer.change(apply, note)
        except PLANNED:
            if key not in writer.draining:
                self._ledger.forget(key)
            raise
        if was_held:
            writer.draining[key] = writer.state.generation
            self.load_s.pop(key, None)

    async def _measure_unload(self, key: Key, own_objects: frozenset[str]) -> None:
        """Note what an unload left behind: in each worker's heap, and mapped in any process."""
        fleet = self._writer.fleet
        workers = [worker for worker in fleet.workers() if worker.state == SERVING]
        measured = fleet.unreleased(key)
        pids = [os.getpid(), *(worker.pid for worker in workers if worker.pid is not None)]
        try:
            mapped_bytes = await self._residency.quietly(_still_mapped, pids, own_objects)
        except OSError as error:
            why = f"the maps of a worker cannot be read: {error.strerror}"
            self._ledger.last_unload = Unload(key, None, why)
            return
        missing = [worker.slot for worker in workers if worker.slot not in measured]
        if missing:
            why = f"the workers in slots {missing} were replaced and did not measure it"
            self._ledger.last_unload = Unload(key, None, why)
        else:
            left_bytes = sum(measured.values()) + mapped_bytes
            self._ledger.last_unload = Unload(key, left_bytes)

    async def _let_go_unheld(self, key: Key) -> None:
        """Unmap a version that a load brought into RAM and that then did not come to be loaded."""
        if key not in self._writer.state.loaded and key not in self._writer.draining:
            await self._residency.release(key)

    async def _drained(self, key: Key) -> None:
        """Return when no worker holds a version that left the state any more."""
        generation = self._writer.draining.get(key)
        if generation is not None:
            await self._settled(generation, self._drain_timeout_s)

    async def _loaded(self, key: Key) -> VersionReport:
        """Return when every worker holds the version as the state wants it, or raise why not."""
        return self._check_loaded(
            key, await self._settled(self._writer.state.generation, self._load_timeout_s)
        )

    def _check_loaded(self, key: Key, reports: Mapping[Key, VersionReport]) -> VersionReport:
        report = reports.get(key)
        if report is None or key not in self._writer.state.loaded:
            why = self._writer.state.model(key[0]).failed.get(key[1], "it was taken out meanwhile")
            raise LoadFailed(why)
        if report.state != State.READY:
            raise LoadFailed(report.reason or f"a worker reports it {report.state}")
        return report

    async def _settled(self, generation: int, timeout_s: float) -> Mapping[Key, VersionReport]:
        try:
            reports = await self._writer.fleet.settled(generation, timeout_s)
        except TimeoutError as error:
            raise DeadlineExpired(
                f"the workers did not come to generation {generation} within {timeout_s:g} s"
            ) from error
        if generation == self._writer.state.generation:
            for key, report in reports.items():
                if report.state == State.READY:
                    self._ledger.measure(key, report.private_bytes)
        draining = self._writer.draining
        await self._clear([key for key, left in draining.items() if left <= generation])
        return reports

    async def _clear(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if self._writer.draining.pop(key, None) is not None:
                await self._residency.release(key)
                self._ledger.forget(key)


def _still_mapped(pids: Iterable[int], digests: Iterable[str]) -> int:
    names = {digest_hex(digest) for digest in digests}
    return sum(mapped_bytes(pid, names) for pid in pids)


def _progress(
    operation: Operation, total_bytes: int, low: float, high: float
) -> Callable[[int], None]:
    """Return a callback that moves the operation from ``low`` to ``high`` as bytes are read."""
    total_bytes = max(1, total_bytes)

    def done(read_bytes: int) -> None:
        share = min(1.0, read_bytes / total_bytes)
        operation.progress = max(operation.progress, low + (high - low) * share)

    return done


def refuse_restoring(writer: StateWriter, key: Key) -> None:
    """Raise Conflict for a version that the start has not brought back yet."""
    if key in writer.restoring or key in writer.warming:
        raise Conflict(
            f"{key[0]}/{key[1]} is still being loaded again after the server's start: try again "
            "when it is READY"
        )

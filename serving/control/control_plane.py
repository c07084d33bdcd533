"""The control plane: everything that a person or a program may ask of the server, without HTTP.

It looks up, refuses what cannot be, and hands the rest to the one writer of the state and to the
loads. Methods are for the event-loop thread; those that return an Operation do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from registry import desired, plan
from registry.budget import Plan
from registry.errors import Conflict, RegistryError
from registry.events import Event, utc_now
from registry.ident import digest_hex
from registry.lifecycle import State
from registry.manifest import Manifest
from registry.model_state import ModelState
from registry.reasons import holders
from registry.store import GcReport, Store, VerifyReport, VersionRecord
from serving.auth import SERVER, Actor
from serving.control.change_events import Note
from serving.control.ledger import Ledger
from serving.control.operations import Operation, Operations
from serving.control.plan_runner import PlanRunner
from serving.control.residency import Residency
from serving.control.rolling import RollingRestart
from serving.control.state_writer import StateWriter
from serving.control.traffic_control import TrafficControl
from serving.control.version_loads import Inspector, VersionLoads
from serving.control.waiting_loads import WaitingLoads
from serving.control.worker_versions import PLANNED
from serving.fleet import Fleet, WorkerInfo
from serving.machine import read_machine
from serving.settings import Settings

# An upload that broke off goes so much later than it has to, at most.
OLD_UPLOADS_EVERY_S: Final = 60.0
_log = logging.getLogger(__name__)


class ControlPlane:
    """The single writer and all it needs. ``start`` before anything else, ``close`` at the end.

    ``traffic``: routes, aliases and settings.
    ``inspect``: blocking, see Inspector. ``budget_bytes``: what loaded versions may take.
    ``workers``: how many worker processes each hold a version's private memory.
    ``available_bytes``: what the machine has left now.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        settings: Settings,
        inspect: Inspector,
        *,
        budget_bytes: int,
        workers: int,
        available_bytes: Callable[[], int] = lambda: read_machine().available_bytes,
    ) -> None:
        self.store = store
        self.fleet = fleet
        self.writer = StateWriter(store, fleet)
        self.ledger = Ledger(self.writer, budget_bytes, workers)
        self.residency = Residency(
            lambda digest: store.objects_dir / digest_hex(digest),
            bytes_per_s=settings.prefault_bytes_per_s,
            is_locking=settings.memory_lock == "auto",
            threads=settings.concurrent_loads,
        )
        self._residency_check_s = settings.residency_check_s
        self.operations = Operations(utc_now)
        self.loads = VersionLoads(
            self.writer,
            self.ledger,
            self.residency,
            inspect,
            concurrent_loads=settings.concurrent_loads,
            inspect_memory_bytes=settings.inspect_memory,
            load_timeout_s=settings.load_timeout_s,
            drain_timeout_s=settings.drain_timeout_s,
        )
        self.traffic = TrafficControl(self.writer, PlanRunner(self.writer, self.load, self.unload))
        self._rolling = RollingRestart(
            self.writer, self.ledger, fleet, available_bytes, self.before_respawn
        )
        self._upgrade: Callable[[], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._restore: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._old_uploads: asyncio.Task[None] | None = None
        self._waiting = WaitingLoads(self.writer, self.ledger, self.load)

    async def start(self) -> None:
        """Read the persisted state, publish it, and begin to load again what was loaded."""
        writer = self.writer
        await writer.open()
        loaded = writer.state.loaded
        writer.restoring.update(loaded)
        for key, entry in sorted(loaded.items()):
            if key[1] not in writer.records.get(key[0], {}):
                await self._fail_at_start(key, "its record cannot be read from the store")
            elif not entry.is_serving:
                reason = "the server ended while it was being loaded: load it again"
                await self._fail_at_start(key, reason)
        self.fleet.on_quarantine(self._on_quarantine)
        await writer.announce()
        self.fleet.on_arrival(self._on_arrival)
        self._restore = self._spawn(self.loads.restore(), "restore")
        if self._residency_check_s:
            self._spawn(self._keep_resident(), "residency")

    async def restored(self) -> None:
        """Return when everything that was loaded before the start is READY or FAILED."""
        if self._restore is not None:
            await asyncio.shield(self._restore)

    async def close(self) -> None:
        """Stop what is under way. What was acknowledged is persisted already."""
        self._is_closing = True
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.residency.close()
        await self.writer.close()

    async def doubtful(self, suspects: Collection[desired.Key] = ()) -> frozenset[desired.Key]:
        """Return the versions that no new worker should map before ``before_respawn`` is over."""
        return await self.loads.objects.doubtful(suspects)

    async def before_respawn(self, suspects: Collection[desired.Key] = ()) -> None:
        """Make versions FAILED whose objects are damaged, before a new worker maps them.

        ``suspects``: versions that workers were at when they could not read mapped memory.
        """
        if await self.loads.objects.run(suspects):
            self._catch_up()

    def upload_broke_off(self) -> None:
        """Have what is kept of uploads given up in time."""
        is_under_way = self._old_uploads is not None and not self._old_uploads.done()
        if not (is_under_way or self._is_closing):
            self._old_uploads = self._spawn(self._drop_old_uploads(), "old uploads")

    # Loads and unloads

    def load(self, model: str, version: int, actor: Actor, reason: str = "") -> Operation:
        """Begin a load, or join the one that is the last thing asked of the version."""
        self.writer.record(model, version)
        return self._operate("load", model, version, self.loads.load, actor, reason)

    def unload(self, model: str, version: int, actor: Actor, reason: str = "") -> Operation:
        """Begin an unload, or raise Conflict at once if something names the version."""
        self.writer.record(model, version)
        wanted = self.writer.state.model(model)
        if version in wanted.loaded or version in wanted.failed:
            desired.unload(self.writer.state, model, version)
        return self._operate("unload", model, version, self.loads.unload, actor, reason)

    def unload_all(self, model: str, actor: Actor, reason: str = "") -> list[Operation]:
        """Begin to unload every version of a model, or raise Conflict and leave all of them."""
        for version in self.writer.versions(model):
            if held_by := holders(self.model(model), model, version):
                raise Conflict(f"{model}/{version} cannot be unloaded: {'; '.join(held_by)}")
        return [self.unload(model, version, actor, reason) for version in self._present(model)]

    def plan(self, model: str, version: int) -> Plan:
        """Return what a load would take, by what is known of the version; changes nothing."""
        return self.ledger.plan(self.writer.record(model, version))

    # Versions

    async def publish(
        self, manifest: Manifest, actor: Actor, reason: str = ""
    ) -> tuple[VersionRecord, bool]:
        """Store a version whose objects are all there; False: it was there already.

        Before it returns, old versions of the model go that are more than it retains.
        """
        # Apart, for it may read gigabytes, and other changes must not wait for that.
        await asyncio.to_thread(self.writer.store.find_damage, manifest)
        record, is_new = await self.writer.publish_version(manifest, actor, reason)
        if is_new:
            await self._retain(record.model, record.version)
        return record, is_new

    async def delete(self, model: str, version: int, actor: Actor, reason: str = "") -> None:
        """Remove a version that is not loaded, named, or being worked on."""
        if version not in self.model(model).failed:
            # One that FAILED may have no record any more: then there is this to forget.
            self.writer.record(model, version)
        self._refuse_busy(model, version)
        state, why = self.writer.status((model, version))
        if state is State.DRAINING:
            raise Conflict(
                f"{model}/{version} cannot be deleted: it is {state}: {why}: try again when it is "
                "UNLOADED"
            )
        await self.writer.delete_version(model, version, actor, reason)
        self.ledger.deleted((model, version))

    # The workers

    def restart_workers(self, actor: Actor, reason: str = "") -> Operation:
        """Begin to replace the workers one by one, or join the restart under way."""
        if (last := self.operations.last_of("", 0)) is not None:
            return last
        self._rolling.check()
        operation = self.operations.begin("restart", "", 0)
        self._spawn(self._run(operation, self._rolling.run(operation, actor, reason)), "restart")
        return operation

    def on_upgrade(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Await ``begin`` when somebody asks for an upgrade; it raises why there can be none."""
        self._upgrade = begin

    async def upgrade(self, actor: Actor, reason: str = "") -> None:
        """Let the release that is installed now go on in this process, or raise why not."""
        if self._upgrade is None:
            raise Conflict("this server cannot be upgraded in place: stop and start it")
        await self._upgrade()
        note = Note("upgrade", None, None, actor, reason)
        try:
            await self.writer.record_event(note, {"workers": self.ledger.workers})
        except RegistryError as error:
            # The other release takes over whether or not the disk takes a note of it.
            _log.warning("the upgrade could not be recorded: %s", error)

    def check_upgrade(self) -> None:
        """Raise Conflict or MemoryShort where no other release can take over now."""
        if self.operations.under_way():
            raise Conflict("operations are under way: try again when they have ended")
        self._rolling.check(workers=self.ledger.workers)

    # The store as a whole

    async def gc(self, actor: Actor, reason: str = "") -> GcReport:
        """Drop objects that no version uses."""
        report = await asyncio.to_thread(self.store.gc)
        note = Note("gc", None, None, actor, reason)
        await self.writer.record_event(note, {"objects": report.objects, "bytes": report.bytes})
        return report

    async def verify(self) -> VerifyReport:
        """Read every object and compare it with its digest."""
        return await asyncio.to_thread(self.store.verify)

    async def events(self, since: int | None, model: str | None, limit: int) -> list[Event]:
        """Return recorded changes after ``since``, or the newest where it is None; oldest first."""
        if since is None:
            return await asyncio.to_thread(self.store.events.newest, model, limit)
        return await asyncio.to_thread(self.store.events.read, since, model, limit)

    # What is

    def model(self, name: str) -> ModelState:
        """Return what is wanted of a model."""
        return self.writer.state.model(name)

    def status(self, model: str, version: int) -> tuple[State, str]:
        """Return where a version stands, a load that has not reached the workers included."""
        state, reason = self.writer.status((model, version))
        if state in (State.UNLOADED, State.FAILED):
            operation = self.operations.last_of(model, version)
            if operation is not None and operation.kind == "load":
                return State.LOADING, f"load under way: {operation.stage}"
        return state, reason

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return every worker slot."""
        return self.fleet.workers()

    # Inside

    def _operate(
        self, kind: str, model: str, version: int,
        work: Callable[[Operation, Actor, str], Awaitable[None]], actor: Actor, reason: str,
    ) -> Operation:  # fmt: skip
        last = self.operations.last_of(model, version)
        if last is not None and last.kind == kind:
            return last
        operation = self.operations.begin(kind, model, version)
        if last is None and kind == "load" and self.writer.status((model, version))[0] == "READY":
            self.operations.end(operation)
            return operation
        self._spawn(self._run(operation, work(operation, actor, reason)), f"{kind}-{model}")
        return operation

    async def _run(self, operation: Operation, work: Awaitable[None]) -> None:
        try:
            await work
        except PLANNED as error:
            self.operations.end(operation, error)
        except asyncio.CancelledError:
            self.operations.end(operation, Conflict("the server stopped before it ended"))
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of a task; logged, then told
            _log.exception("%s of %s/%d", operation.kind, operation.model, operation.version)
            self.operations.end(operation, error)
        else:
            self.operations.end(operation)
        self._waiting.ended(operation)
        self._load_waiting()

    def _load_waiting(self) -> None:
        if not self._is_closing:
            self._waiting.begin_next()

    async def _retain(self, model: str, published: int) -> None:
        """Delete old versions beyond those that the model retains; a failure costs a warning."""
        states = {v: self.status(model, v)[0] for v in self.writer.versions(model)}
        for version in plan.expired(self.model(model), model, states, published):
            reason = f"retain: too old beside version {published}"
            try:
                await self.delete(model, version, SERVER, reason)
            except PLANNED as error:
                # It is in use again, or the disk fails: the next publish tries once more.
                _log.warning("%s/%d is retained: %s", model, version, error)

    def _present(self, model: str) -> list[int]:
        """Return the versions that hold memory, are about to, or FAILED."""
        return [
            version
            for version in self.writer.versions(model)
            if self.status(model, version)[0] is not State.UNLOADED
        ]

    def _refuse_busy(self, model: str, version: int) -> None:
        operation = self.operations.last_of(model, version)
        if operation is not None:
            raise Conflict(
                f"{model}/{version} cannot be deleted: its {operation.kind} is under way "
                f"(operation {operation.id}): try again when it has ended"
            )

    async def _keep_resident(self) -> None:
        """Bring evicted weights back now and then; what cannot be read any more FAILS."""
        while True:
            await asyncio.sleep(self._residency_check_s)
            if await self.residency.check():
                await self.before_respawn()
            if self.writer.draining:
                # Whoever waited for the workers to give it back may have given up on them.
                self._catch_up()

    async def _drop_old_uploads(self) -> None:
        while await asyncio.to_thread(self.store.drop_old_uploads):  # noqa: ASYNC110 - by the clock
            await asyncio.sleep(OLD_UPLOADS_EVERY_S)

    def _on_arrival(self) -> None:
        # It may hold versions in another form than its siblings. A restore counts for itself.
        if self.writer.is_restored and not self._is_closing:
            self._catch_up()

    def _catch_up(self) -> None:
        """Begin to count what workers took and gave back, and then to load what waits for it."""

        async def catch_up() -> None:
            await self.loads.caught_up()
            # Workers may have given something back, or hold less than was known.
            self._load_waiting()

        if self._catching_up is None or self._catching_up.done():
            self._catching_up = self._spawn(catch_up(), "catch-up")

    async def _fail_at_start(self, key: desired.Key, reason: str) -> None:
        note = Note("restore_failed", *key, SERVER, reason)
        await self.writer.change(lambda s, stamp: desired.fail(s, *key, reason, stamp), note)
        self.writer.restoring.discard(key)

    def _on_quarantine(self, model: str, version: int, reason: str) -> None:
        async def fail() -> None:
            await self.loads.failures.fail((model, version), reason, "quarantine", SERVER)
            self._load_waiting()

        self._spawn(fail(), f"quarantine-{model}-{version}")

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s ended", task.get_name(), exc_info=error)

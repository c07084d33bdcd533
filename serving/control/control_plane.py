"""The control plane: everything that a person or a program may ask of the server, without HTTP.

It looks up, refuses what cannot be, and hands the rest to the one writer of the state and to the
loads. Methods are for the event-loop thread; those that return an Operation do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from registry import desired
from registry.budget import Plan
from registry.desired import Alias, DesiredState, ModelState
from registry.errors import Conflict, NotFound
from registry.events import Event, utc_now
from registry.ident import check_alias, digest_hex, shown
from registry.lifecycle import State
from registry.manifest import Manifest
from registry.rollout import Route, Stamp
from registry.store import GcReport, Store, VerifyReport, VersionRecord
from serving.auth import SERVER, Actor
from serving.control.ledger import Ledger
from serving.control.operations import Operation, Operations
from serving.control.residency import Residency
from serving.control.state_writer import Note, StateWriter
from serving.control.version_loads import PLANNED, Inspector, VersionLoads, refuse_restoring
from serving.fleet import Fleet, WorkerInfo
from serving.settings import Settings

_log = logging.getLogger(__name__)
# A change of route is answered when no worker routes by the old one any more, or after this.
ROUTED_TIMEOUT_S: Final = 5.0


class ControlPlane:
    """The single writer and all it needs. ``start`` before anything else, ``close`` at the end.

    ``inspect``: blocking, see Inspector. ``budget_bytes``: what loaded versions may take.
    ``workers``: how many worker processes each hold a version's private memory.
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._restore: asyncio.Task[None] | None = None

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
        self._restore = self._spawn(self.loads.restore(), "restore")
        if self._residency_check_s:
            self._spawn(self._keep_resident(), "residency")

    async def restored(self) -> None:
        """Return when everything that was loaded before the start is READY or FAILED."""
        if self._restore is not None:
            await asyncio.shield(self._restore)

    async def close(self) -> None:
        """Stop what is under way. What was acknowledged is persisted already."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.residency.close()
        await self.writer.close()

    async def before_respawn(self) -> None:
        """Make versions FAILED whose objects are damaged, before a new worker maps them."""
        await self.loads.check_objects()

    # Loads and unloads

    def load(self, model: str, version: int, actor: Actor, reason: str = "") -> Operation:
        """Begin a load, or join the one that is the last thing asked of the version."""
        self.writer.record(model, version)
        return self._operate("load", model, version, self.loads.load, actor, reason)

    def unload(self, model: str, version: int, actor: Actor, reason: str = "") -> Operation:
        """Begin an unload, or raise Conflict at once if something names the version."""
        self.writer.record(model, version)
        if version in self.writer.state.model(model).loaded:
            desired.unload(self.writer.state, model, version)
        return self._operate("unload", model, version, self.loads.unload, actor, reason)

    def unload_all(self, model: str, actor: Actor, reason: str = "") -> list[Operation]:
        """Begin to unload every version of a model, or raise Conflict and leave all of them."""
        for version in self.writer.versions(model):
            if holders := self.model(model).holders(model, version):
                raise Conflict(f"{model}/{version} cannot be unloaded: {'; '.join(holders)}")
        return [self.unload(model, version, actor, reason) for version in self._present(model)]

    def plan(self, model: str, version: int) -> Plan:
        """Return what a load would take, by what is known of the version; changes nothing."""
        return self.ledger.plan(self.writer.record(model, version))

    # Versions

    async def publish(
        self, manifest: Manifest, actor: Actor, reason: str = ""
    ) -> tuple[VersionRecord, bool]:
        """Store a version whose objects are all there; False: it was there already."""
        return await self.writer.publish_version(manifest, actor, reason)

    async def delete(self, model: str, version: int, actor: Actor, reason: str = "") -> None:
        """Remove a version that is not loaded, named, or being worked on."""
        self.writer.record(model, version)
        self._refuse_busy(model, version)
        state, why = self.writer.status((model, version))
        if state is State.DRAINING:
            raise Conflict(
                f"{model}/{version} cannot be deleted: it is {state}: {why}: try again when it is "
                "UNLOADED"
            )
        await self.writer.delete_version(model, version, actor, reason)

    # Aliases and routes

    async def set_alias(
        self, model: str, alias: str, version: int, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> tuple[Alias, int | None]:  # fmt: skip
        """Let an alias name a READY version; return it and the version it named before."""
        self.writer.record(model, version)
        refuse_restoring(self.writer, (model, version))
        before, after = await self._change(
            Note("alias", model, version, actor, reason),
            lambda s, stamp: desired.set_alias(s, model, alias, version, stamp),
            lambda m: m.aliases[alias].etag if alias in m.aliases else None,
            if_match,
        )
        old = before.aliases.get(alias)
        return after.aliases[alias], old.version if old is not None else None

    async def delete_alias(
        self, model: str, alias: str, actor: Actor, reason: str = "", if_match: str | None = None
    ) -> int:
        """Remove an alias and return the version it named."""
        self.writer.versions(model)
        check_alias(alias)
        before, _ = await self._change(
            Note("alias_deleted", model, None, actor, reason),
            lambda s, _: desired.delete_alias(s, model, alias),
            lambda m: m.aliases[alias].etag if alias in m.aliases else None,
            if_match,
        )
        return before.aliases[alias].version

    def route(self, model: str) -> Route:
        """Return a model's route, or raise NotFound."""
        self.writer.versions(model)
        route = self.model(model).route
        if route is None:
            raise NotFound(f"{model} has no route: the first version loaded becomes it")
        return route

    async def set_route(
        self, model: str, version: int | None, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> Route:  # fmt: skip
        """Route to a READY version; None follows the highest READY one from now on."""
        self.writer.versions(model)
        if version is not None:
            self.writer.record(model, version)
            refuse_restoring(self.writer, (model, version))

        def apply(state: DesiredState, stamp: Stamp) -> DesiredState:
            if version is None:
                return desired.follow_latest(state, model, stamp)
            return desired.set_route(state, model, version, stamp)

        note = Note("route", model, version, actor, reason)
        _, after = await self._change(note, apply, _route_etag, if_match)
        return _present(after.route)

    async def rollback(
        self, model: str, to: int | None, actor: Actor, reason: str = "",
        if_match: str | None = None,
    ) -> Route:  # fmt: skip
        """Route to the previous version, or to one the route has been at; load it if need be."""
        self.writer.versions(model)
        _check_etag(model, self.model(model), _route_etag, if_match)
        version = desired.rollback_target(self.writer.state, model, to)
        self.writer.record(model, version)
        if self.writer.status((model, version))[0] is not State.READY:
            operation = self.load(model, version, actor, reason)
            await operation.wait()
            if operation.error is not None:
                raise operation.error
        _, after = await self._change(
            Note("rollback", model, version, actor, reason),
            lambda s, stamp: desired.set_route(s, model, version, stamp),
            _route_etag,
            if_match,
        )
        return _present(after.route)

    async def delete_route(
        self, model: str, actor: Actor, reason: str = "", if_match: str | None = None
    ) -> None:
        """Remove the route, so that its versions can be unloaded."""
        self.writer.versions(model)
        await self._change(
            Note("route_deleted", model, None, actor, reason),
            lambda s, _: desired.delete_route(s, model),
            _route_etag,
            if_match,
        )

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

    async def events(self, since: int, model: str | None, limit: int) -> list[Event]:
        """Return recorded changes after ``since``, oldest first."""
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

    async def _change(
        self,
        note: Note,
        apply: Callable[[DesiredState, Stamp], DesiredState],
        etag_of: Callable[[ModelState], str | None],
        if_match: str | None,
    ) -> tuple[ModelState, ModelState]:
        """Apply a change to one model if it still is what the caller saw; return before, after.

        Returns when every worker routes by it, so that a client who was told sees it everywhere.
        """
        name = note.model or ""

        def guarded(state: DesiredState, stamp: Stamp) -> DesiredState:
            _check_etag(name, state.model(name), etag_of, if_match)
            return apply(state, stamp)

        before, after = await self.writer.change(guarded, note)
        try:
            await self.fleet.taken(after.generation, ROUTED_TIMEOUT_S)
        except TimeoutError as error:
            # It is durable and published; a worker that hangs is replaced, with this in its target.
            _log.warning("%s of %s acknowledged without all workers: %s", note.kind, name, error)
        return before.model(name), after.model(name)

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
                await self.loads.check_objects()

    async def _fail_at_start(self, key: desired.Key, reason: str) -> None:
        note = Note("restore_failed", *key, SERVER, reason)
        await self.writer.change(lambda s, stamp: desired.fail(s, *key, reason, stamp), note)
        self.writer.restoring.discard(key)

    def _on_quarantine(self, model: str, version: int, reason: str) -> None:
        work = self.loads.fail((model, version), reason, "quarantine", SERVER)
        self._spawn(work, f"quarantine-{model}-{version}")

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s ended", task.get_name(), exc_info=error)


def _present(route: Route | None) -> Route:
    if route is None:
        raise NotFound("the route was removed at the same moment")
    return route


def _route_etag(model: ModelState) -> str | None:
    return model.route.etag if model.route is not None else None


def _check_etag(
    name: str,
    model: ModelState,
    etag_of: Callable[[ModelState], str | None],
    if_match: str | None,
) -> None:
    if if_match is None:
        return
    present = etag_of(model)
    wanted = [tag.strip() for tag in if_match.split(",")]
    if present is None or ("*" not in wanted and present not in wanted):
        now = f"is {present} now" if present is not None else "does not exist now"
        raise Conflict(
            f"{name}: If-Match {shown(if_match)}: what it guards {now}: read it and try again"
        )

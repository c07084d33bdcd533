"""Keeps the workers running: starts, watches, replaces and stops them, and tells them the target.

One task owns each slot from the first start to the stop. A replacement gets the slot's listener
and the newest target, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from serving.fleet import VersionKey, VersionReport, WorkerInfo
from serving.settings import Settings
from serving.target import Target
from serving.web.handover import ConnectionQueue, move_waiting
from serving.web.inherit import LeftWorker, copy_of
from serving.web.sockets import refuse_new_connections, steer
from serving.workers import messages
from serving.workers.cores import WorkerPlan
from serving.workers.deaths import MemoryKills, is_from_outside
from serving.workers.messages import Hello
from serving.workers.quarantine import Quarantine
from serving.workers.replacement import Replacement
from serving.workers.respawn_check import ObjectCheck, RespawnChecks, without_withheld
from serving.workers.slot import RESTART_LABELS, Slot, Timings
from serving.workers.standing import is_settled, standing
from serving.workers.worker_life import WorkerLife
from serving.workers.worker_process import WORKER_COMMAND

_log = logging.getLogger(__name__)


def regions_for(workers: int) -> int:
    """Return how many regions the metrics page needs for so many slots."""
    return 2 * workers


class SharedMemory(Protocol):
    """The metrics memory, as far as a supervisor needs it."""

    @property
    def fd(self) -> int:
        """Descriptor that workers inherit."""
        ...

    def suspects(self, region: int) -> Sequence[VersionKey]:
        """Versions that the worker which counted there was loading or running when it died."""
        ...


class Supervisor:
    """All workers as one; the ``Fleet`` of the control plane. Event-loop thread only.

    ``memory`` has ``regions_for(plan.workers)`` regions: a slot's workers take turns in two.
    ``queues``: one for each slot. ``is_lasting``: the listeners outlive this server, so at its end
    what waits in them is left. ``is_successor``: other workers serve until these hold everything.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        plan: WorkerPlan,
        listeners: Sequence[socket.socket],
        memory: SharedMemory,
        objects_dir: Path,
        worker_command: Sequence[str] = WORKER_COMMAND,
        timings: Timings | None = None,
        queues: Sequence[ConnectionQueue] | None = None,
        is_lasting: bool = False,
        is_successor: bool = False,
    ) -> None:
        self._timings = timings or Timings(load_timeout_s=settings.load_timeout_s)
        self._slots = [
            Slot(
                i, s, plan.cpus[i], queues[i] if queues else ConnectionQueue.open(), region=i,
                is_patient=is_successor,
            )
            for i, s in enumerate(listeners)
        ]  # fmt: skip
        self._is_lasting = is_lasting
        self._can_move = not settings.tls_cert
        self._listeners = tuple(listeners)
        regions = regions_for(plan.workers)
        self._tasks: list[asyncio.Task[None]] = []
        self._running: dict[asyncio.Task[None], Slot] = {}
        self._target: Target | None = None
        self._quarantine = Quarantine(memory.suspects)
        self._memory_kills = MemoryKills()
        self._restarts = Counter(dict.fromkeys(RESTART_LABELS, 0))
        self._checks = RespawnChecks()
        self._changed = asyncio.Event()
        self._live: tuple[int, ...] = ()
        self._on_arrival: Callable[[], None] | None = None
        self._is_stopping = False
        self._cannot_start: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._life = WorkerLife(
            tuple(worker_command), memory.fd, self._timings,
            hello=lambda slot: Hello(
                slot.index, slot.region, regions, slot.is_patient, plan.threads, slot.cpus,
                objects_dir, settings,
            ),
            target=lambda slot: without_withheld(
                self._quarantine.without(self._target), slot.withheld
            ),
            notify=self._notify, is_stopping=lambda: self._is_stopping,
        )  # fmt: skip
        self._replacement = Replacement(
            self._slots, self._tasks, self._restarts, self._run,
            changed=lambda: self._changed.wait(), is_stopping=lambda: self._is_stopping,
            timings=self._timings, regions=regions, drain_s=settings.stop_timeout_s,
        )  # fmt: skip

    # What the control plane sees.

    def publish(self, target: Target) -> None:
        """Make ``target`` the wanted state of every worker, now and after each respawn."""
        before = self._wanted_keys()
        self._target = target
        self._quarantine.follow(before, self._wanted_keys())
        for slot in self._all_slots():
            slot.target_changed.set()
        self._notify()

    async def settled(
        self, generation: int, timeout_s: float
    ) -> Mapping[VersionKey, VersionReport]:
        """Wait until every listening worker reports ``generation`` or a later one.

        Dead and starting workers are not waited for, with two exceptions. One that a version that
        is still wanted killed: whether that can serve is not known before the worker is back or
        the version is quarantined. One that was told of a restore under way: it accepts at once.
        While no worker listens, there is nothing to hold the generation, and this waits.

        Returns the versions of the newest target and those quarantined. Raises TimeoutError.
        """
        await self._until(
            lambda: is_settled(
                self._all_slots(), generation, self._wanted_keys() - self._quarantine.reasons.keys()
            ),
            timeout_s,
            lambda slot: slot.generation < generation or bool(slot.owed),
        )
        return standing(self._slots, self._wanted_keys(), self._quarantine.reasons)

    async def taken(self, generation: int, timeout_s: float) -> None:
        """Wait until every listening worker routes by ``generation`` or a later one."""

        def is_behind(slot: Slot) -> bool:
            return slot.is_listening and slot.taken_generation < generation

        await self._until(lambda: not any(map(is_behind, self._all_slots())), timeout_s, is_behind)

    async def replace(self, slot: int) -> None:
        """Let a new worker take over a slot, with nothing lost; returns when the old one is gone.

        Raises WorkerLost where the new one could not take over; the old one then serves on.
        """
        await self._replacement.replace(slot)

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return every slot in order."""
        return tuple(slot.info() for slot in self._slots)

    def unreleased(self, key: VersionKey) -> Mapping[int, int]:
        """Return by slot what the last unload of a version left in its worker, in bytes."""
        return {
            slot.index: slot.unreleased[key]
            for slot in self._slots
            if slot.is_listening and key in slot.unreleased
        }

    def restarts(self) -> Mapping[str, int]:
        """Return how many workers were replaced, by one of a few reasons."""
        return dict(self._restarts)

    def on_arrival(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when a worker begins to serve in a slot where none did."""
        self._on_arrival = callback

    def on_quarantine(self, callback: Callable[[str, int, str], None]) -> None:
        """Call ``callback(model, version, reason)`` when a version killed too many workers."""
        self._quarantine.on_entry(callback)

    def before_respawn(self, check: ObjectCheck) -> None:
        """Have ``check`` look at what each worker that replaces a dead one would map."""
        self._checks.check = check

    # Life.

    def start(self) -> None:
        """Start a worker in every slot and keep it running until ``stop``."""
        self._tasks.extend(self._run(slot) for slot in self._slots)

    async def cannot_start(self) -> str:
        """Wait until it is certain that no worker can start; return the reason."""
        return await asyncio.shield(self._cannot_start)

    async def stop(self, drain_s: float) -> bool:
        """Let every worker answer what it accepted and end; return whether all did in time."""
        self._is_stopping = True
        self._checks.stop()
        self._notify()
        if not self._is_lasting:
            for slot in self._slots:
                refuse_new_connections(slot.listener)
        tasks = set(self._running)
        # Those beside come first: what they would still hand over, the others no longer take.
        for slot in (*self._replacement.beside, *self._slots):
            if slot.process is None:
                continue
            if slot.is_ready:
                with contextlib.suppress(ConnectionError):
                    await slot.process.wire.send(
                        messages.STOP, {"drain_s": drain_s, "is_lasting": self._is_lasting}
                    )
            else:
                slot.process.kill()
        for task, slot in self._running.items():
            if slot.process is None:
                task.cancel()
        late: set[asyncio.Task[None]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=drain_s + self._timings.exit_grace_s)
            self.kill()
            await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            slot.queue.close()
        return not late

    async def all_listen(self) -> None:
        """Wait until every slot has a worker that accepts; each is then as any other."""
        while not all(slot.is_accepting for slot in self._slots):
            await self._changed.wait()
        for slot in self._slots:
            slot.is_patient = False

    async def leave(self) -> tuple[list[LeftWorker], list[tuple[int, int]]]:
        """End, but leave the workers that accept and all queues to the next program here.

        Returns them as copies; after it there is nothing to ``stop``.
        """
        self._is_stopping = True
        self._checks.stop()
        left = []
        for slot in self._slots:
            if slot.is_accepting and slot.process is not None:
                wire_fd = await slot.process.wire.leave()
                left.append(LeftWorker(slot.index, slot.process.pid, wire_fd))
                slot.is_left = True
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        queues = [(copy_of(a), copy_of(b)) for a, b in (slot.queue.fds for slot in self._slots)]
        for slot in self._slots:
            slot.queue.close()
        self._slots.clear()
        return left, queues

    def kill(self) -> None:
        """End every worker at once."""
        self._is_stopping = True
        for slot in self._all_slots():
            if slot.process is not None:
                slot.process.kill()

    def _run(self, slot: Slot) -> asyncio.Task[None]:
        task = asyncio.create_task(self._keep_running(slot), name=f"slot {slot.index}")
        self._running[task] = slot
        task.add_done_callback(self._slot_ended)
        return task

    def _all_slots(self) -> list[Slot]:
        return [*self._slots, *self._replacement.beside]

    async def _keep_running(self, slot: Slot) -> None:
        while True:
            reason, code = await self._life.live(slot)
            if self._is_stopping or slot.is_retired:
                slot.state = "stopped"
                return
            if slot.is_candidate:
                slot.reason = reason
                return
            self._after_death(slot, reason, code)
            self._move_waiting(slot)
            slot.restarts += 1
            await asyncio.sleep(self._backoff_s(slot))
            slot.is_patient = self._can_spare(slot)
            # A mapping that cannot be read: its disk fails, or somebody cut it short.
            self._checks.begin(slot, slot.blamed if code == -signal.SIGBUS else frozenset())

    def _move_waiting(self, slot: Slot) -> None:
        """Let siblings answer who connected to a worker after its end and before it was noticed."""
        others = [s.queue for s in self._slots if s.is_accepting and s is not slot]
        if others and self._can_move:
            move_waiting(slot.listener, others, slot.queue)

    def _can_spare(self, slot: Slot) -> bool:
        """Return whether the next worker of a slot may take its time: others answer meanwhile.

        One that accepts before it holds all would answer 503 where they would answer.
        """
        is_restored = self._target is not None and self._target.is_restored
        return is_restored and any(s.is_accepting for s in self._slots if s is not slot)

    def _backoff_s(self, slot: Slot) -> float:
        """Return the wait before the next start: short after a life, longer after each dud."""
        longer = self._timings.backoff_first_s * 2.0 ** min(slot.failed_starts, 20)
        return min(longer, self._timings.backoff_max_s)

    def _after_death(self, slot: Slot, reason: str, code: int) -> None:
        _log.error("worker died", extra={"slot": slot.index, "reason": reason})
        slot.state, slot.reason = "restarting", reason
        self._restarts[slot.restart_label(code)] += 1
        is_outside = is_from_outside(
            code, is_ours=bool(slot.kill_reason), is_out_of_memory=self._memory_kills.happened()
        )
        if not slot.is_ready:
            slot.failed_starts += 1
            slot.own_failed_starts += not is_outside
        self._quarantine.blame(slot, reason, is_from_outside=is_outside)
        self._notify()
        most = self._timings.max_failed_starts
        is_hopeless = all(slot.own_failed_starts >= most for slot in self._slots)
        if is_hopeless and not self._cannot_start.done():
            self._cannot_start.set_result(
                f"no worker can start: {most} attempts in each slot, the last one {reason}"
            )

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        """End the server when a slot's task failed: nobody would replace its workers any more."""
        del self._running[task]
        self._notify()
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("the supervisor failed", exc_info=error)
        if not self._cannot_start.done():
            self._cannot_start.set_result(f"the supervisor failed: {type(error).__name__}")

    def _notify(self) -> None:
        """Let waiters look again, and new connections go to the workers that accept them."""
        live = tuple(sorted({s.index for s in self._all_slots() if s.is_accepting}))
        is_arrival = not set(live) <= set(self._live)
        if live != self._live:
            self._live = live
            steer(self._listeners, live)
        self._changed.set()
        self._changed = asyncio.Event()
        if is_arrival and self._on_arrival is not None:
            self._on_arrival()

    async def _until(
        self, holds: Callable[[], bool], timeout_s: float, is_behind: Callable[[Slot], bool]
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            behind = [slot.index for slot in self._all_slots() if is_behind(slot)]
            raise TimeoutError(
                f"the workers in slots {behind} did not get there within {timeout_s:g} s"
            ) from None

    def _wanted_keys(self) -> set[VersionKey]:
        return {(v.model, v.version) for v in self._target.versions} if self._target else set()

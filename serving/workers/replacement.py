"""A planned replacement: another worker takes over a slot, and then the one before it ends.

The new worker runs in a second slot of the same number, with the same listener and queue. That
takes the first one's place once its worker listens; the first one hands over what it has and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from serving.errors import WorkerLost
from serving.workers import messages
from serving.workers.slot import Slot, Timings

ROLLING: Final = "replaced by a rolling restart"


@dataclass(slots=True)
class Replacement:
    """Replaces workers in ``slots``, kept running by the ``tasks`` of the same places.

    Both lists are the supervisor's own and are changed here. ``run`` starts the task of a slot;
    ``changed`` waits until a worker said something, a task ended or a stop began. ``drain_s``: what
    a worker may take to hand over. ``beside``: workers that are to take over or have handed over.
    """

    slots: list[Slot]
    tasks: list[asyncio.Task[None]]
    restarts: Counter[str]
    run: Callable[[Slot], asyncio.Task[None]]
    changed: Callable[[], Awaitable[object]]
    is_stopping: Callable[[], bool]
    timings: Timings
    regions: int
    drain_s: float
    beside: list[Slot] = field(default_factory=list)

    async def replace(self, index: int) -> None:
        """Let a new worker take over a slot, with nothing lost; returns when the old one is gone.

        Raises WorkerLost where the new one could not take over; the old one then serves on.
        """
        old = self.slots[index]
        new = Slot(
            index, old.listener, old.cpus, old.queue,
            # A slot's workers take turns in two regions, half of all apart.
            region=(old.region + self.regions // 2) % self.regions,
            is_patient=True, is_candidate=True, restarts=old.restarts + 1, reason=ROLLING,
        )  # fmt: skip
        task = self.run(new)
        self.beside.append(new)
        try:
            await self._listens(new, task)
        except BaseException:
            # A stop under way ends it, as all others.
            if not self.is_stopping():
                task.cancel()
                await asyncio.wait([task])
                self.beside.remove(new)
            raise
        retiring, self.tasks[index] = self.tasks[index], task
        self.beside.remove(new)
        self.slots[index] = new
        new.is_candidate = new.is_patient = False
        self.restarts["rolling"] += 1
        await self._retire(old, retiring)

    async def _listens(self, slot: Slot, task: asyncio.Task[None]) -> None:
        timeout_s = self.timings.start_timeout_s + self.timings.load_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not slot.is_listening:
                    if task.done() or self.is_stopping():
                        raise WorkerLost(
                            f"the new worker of slot {slot.index} did not take over: {slot.reason}"
                        )
                    await self.changed()
        except TimeoutError as error:
            raise WorkerLost(
                f"the new worker of slot {slot.index} did not hold all within {timeout_s:g} s"
            ) from error

    async def _retire(self, slot: Slot, task: asyncio.Task[None]) -> None:
        """Let a worker end whose slot another one has."""
        slot.is_retired = True
        self.beside.append(slot)
        try:
            if slot.process is None:
                task.cancel()
            else:
                with contextlib.suppress(ConnectionError):
                    await slot.process.wire.send(messages.HAND_OVER, {"drain_s": self.drain_s})
            # What it hands over takes up to drain_s, and what cannot move as long again.
            await asyncio.wait([task], timeout=2 * self.drain_s + self.timings.exit_grace_s)
        finally:
            if slot.process is not None:
                slot.process.kill()
            await asyncio.wait([task])
            self.beside.remove(slot)

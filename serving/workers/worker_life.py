"""The life of one worker: its process is started, told the target, listened to and watched."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from serving.target import Target
from serving.workers import messages
from serving.workers.messages import Hello
from serving.workers.slot import Slot, Timings
from serving.workers.wire import WireError
from serving.workers.worker_process import WorkerProcess, describe_exit

WATCH_S: Final = 0.25

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """Starts workers with ``command`` and serves each one's wire until it ends.

    ``hello``: what a slot's worker is told first; ``target``: what it is to hold now, None as
    long as nothing is known. ``notify`` is called whenever a worker said something or ended.
    """

    command: Sequence[str]
    memory_fd: int
    timings: Timings
    hello: Callable[[Slot], Hello]
    target: Callable[[Slot], Target | None]
    notify: Callable[[], None]
    is_stopping: Callable[[], bool]

    async def live(self, slot: Slot) -> tuple[str, int]:
        """Start a worker and serve its wire until it ends; return why it ended, and its code."""
        slot.begin_life(time.monotonic())
        try:
            process = await WorkerProcess.spawn(
                self.command, slot.listener, self.memory_fd, slot.queue
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}", 1
        slot.process = process
        if slot.restarts and not slot.is_candidate:
            _log.info("worker started again", extra={
                "slot": slot.index, "pid": process.pid, "restarts": slot.restarts,
            })  # fmt: skip
        helpers = [
            asyncio.create_task(self._send_targets(slot, process), name="targets"),
            asyncio.create_task(self._watch(slot, process), name="watch"),
        ]
        try:
            await self._receive(slot, process)
            process.wire.close()
            code = await _ended(process, self.timings.exit_grace_s)
        finally:
            if not slot.is_left:
                process.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.timings.exit_grace_s):
                        await process.exited()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            slot.process, slot.is_listening = None, False
            self.notify()
        return slot.kill_reason or slot.fatal_reason or describe_exit(code), code

    async def _receive(self, slot: Slot, process: WorkerProcess) -> None:
        try:
            while (frame := await process.wire.receive()) is not None:
                slot.take(frame, time.monotonic())
                self.notify()
        except (WireError, KeyError, TypeError, ValueError) as error:
            slot.kill_reason = f"spoke nonsense on the wire: {type(error).__name__}: {error}"
            process.kill()

    async def _send_targets(self, slot: Slot, process: WorkerProcess) -> None:
        """Send the newest target whenever there is one; those in between are never sent."""
        slot.target_changed.set()
        with contextlib.suppress(ConnectionError):
            await process.wire.send(messages.HELLO, self.hello(slot).to_json())
            await slot.can_take.wait()
            await slot.may_map.wait()
            while True:
                await slot.target_changed.wait()
                slot.target_changed.clear()
                if (target := self.target(slot)) is not None and not self.is_stopping():
                    slot.is_early |= not target.is_restored
                    await process.wire.send(messages.TARGET, target.to_json())

    async def _watch(self, slot: Slot, process: WorkerProcess) -> None:
        while True:
            asleep_at = time.monotonic()
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            if now - asleep_at > self.timings.heartbeat_timeout_s / 2:
                # It was we who stood still; what the worker said meanwhile is not read yet.
                slot.beat_at = now
            if not self.is_stopping() and (reason := slot.overdue(now, self.timings)):
                slot.kill_reason = reason
                process.kill()
                return


async def _ended(process: WorkerProcess, grace_s: float) -> int:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            return await process.exited()
    process.kill()
    return await process.exited()

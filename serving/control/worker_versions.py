"""What the workers hold of versions: waited for, taken away, and counted until it is given back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from models.errors import LoadFailed, ModelsError, OutOfMemory
from registry.desired import Key
from registry.errors import RegistryError
from registry.lifecycle import State
from serving.control.ledger import Ledger
from serving.control.memory_watch import MemoryWatch
from serving.control.residency import Residency
from serving.control.state_writer import StateWriter
from serving.errors import DeadlineExpired, ServingError
from serving.fleet import VersionReport

# How much longer than the drain itself an unload waits for the workers to say that it is over.
DRAIN_GRACE_S: Final = 30.0
PLANNED: Final = (RegistryError, ModelsError, ServingError)
_log = logging.getLogger(__name__)


class WorkerVersions:
    """For the event loop's thread. ``load_s``: seconds that the last load of each version took."""

    def __init__(
        self,
        writer: StateWriter,
        ledger: Ledger,
        residency: Residency,
        watch: MemoryWatch,
        *,
        load_timeout_s: float,
        drain_timeout_s: float,
    ) -> None:
        self._writer = writer
        self._ledger = ledger
        self._residency = residency
        self._watch = watch
        self._load_timeout_s = load_timeout_s
        self._drain_timeout_s = drain_timeout_s + DRAIN_GRACE_S
        self.load_s: dict[Key, float] = {}

    async def take_away(self, key: Key, change: Callable[[], Awaitable[object]]) -> None:
        """Do what takes a version from the workers; its memory counts until it comes back."""
        writer = self._writer
        was_held = self.is_held(key)
        if was_held:
            self._ledger.leave(key)
        try:
            await change()
        except PLANNED:
            if key not in writer.draining:
                self._ledger.forget(key)
            raise
        if was_held:
            writer.draining[key] = writer.state.generation
            self.load_s.pop(key, None)

    def is_held(self, key: Key) -> bool:
        """Say whether workers are to hold a version."""
        return key in self._writer.state.loaded and not self._writer.is_away(key)

    async def drained(self, key: Key) -> None:
        """Return when no worker holds a version that left the state any more."""
        generation = self._writer.draining.get(key)
        if generation is not None:
            await self._settled(generation, self._drain_timeout_s)

    async def loaded(self, key: Key) -> VersionReport:
        """Return when every worker holds the version as the state wants it, or raise why not."""
        return self.check_loaded(key, await self.settled())

    def check_loaded(self, key: Key, reports: Mapping[Key, VersionReport]) -> VersionReport:
        """Return how the version stands, or raise LoadFailed, OutOfMemory where that is why."""
        report = reports.get(key)
        if report is None or key not in self._writer.state.loaded:
            why = self._writer.state.model(key[0]).failed.get(key[1], "it was taken out meanwhile")
            raise LoadFailed(why)
        if report.state != State.READY:
            kind = OutOfMemory if report.is_out_of_memory else LoadFailed
            raise kind(report.reason or f"a worker reports it {report.state}")
        return report

    async def settled(self) -> Mapping[Key, VersionReport]:
        """Return how versions stand once every worker has the present state; DeadlineExpired."""
        return await self._settled(self._writer.state.generation, self._load_timeout_s)

    async def caught_up(self) -> None:
        """Count what workers gave back and what they take, after a change that nobody waits for.

        Without it, memory of what left would be held and counted until the next load or unload.
        """
        while True:
            generation = self._writer.state.generation
            try:
                await self.settled()
            except PLANNED as error:
                _log.warning("what the workers hold is not counted anew yet: %s", error)
                return
            if generation == self._writer.state.generation:
                return

    async def _settled(self, generation: int, timeout_s: float) -> Mapping[Key, VersionReport]:
        try:
            reports = await self._writer.fleet.settled(generation, timeout_s)
        except TimeoutError as error:
            raise DeadlineExpired(
                f"the workers did not come to generation {generation} within {timeout_s:g} s"
            ) from error
        draining = self._writer.draining
        await self._clear([key for key, left in draining.items() if left <= generation])
        if generation == self._writer.state.generation:
            await self._watch.measured(reports)
        return reports

    async def _clear(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if self._writer.draining.pop(key, None) is not None:
                await self._residency.release(key)
                self._ledger.forget(key)

"""How versions go that cannot serve: FAILED with the reason, or waiting where only memory lacks."""

from __future__ import annotations

import logging

from models.errors import OutOfMemory
from registry import desired
from registry.desired import DesiredState, Key
from registry.errors import OverBudget, RegistryError
from registry.reasons import waiting_text
from serving.auth import Actor
from serving.control.change_events import Note
from serving.control.state_writer import StateWriter
from serving.control.worker_versions import PLANNED, WorkerVersions
from serving.errors import DeadlineExpired, message_of

_log = logging.getLogger(__name__)


class LoadFailures:
    """Takes versions out of the state and the workers, with an event. Event-loop thread only."""

    def __init__(self, writer: StateWriter, workers: WorkerVersions) -> None:
        self._writer = writer
        self._workers = workers

    async def give_up(self, key: Key, error: Exception, kind: str, actor: Actor) -> None:
        """Make FAILED what could not be loaded; what is wanted and only lacks memory waits."""
        if self.is_short(key, error):
            await self.let_wait(key, message_of(error), actor)
            return
        _log.error("%s/%d: %s: %s", *key, kind, error)
        await self.fail(key, message_of(error), kind, actor)

    def is_short(self, key: Key, error: Exception) -> bool:
        """Say whether a version is wanted and only lacks memory."""
        is_kept = self._writer.state.model(key[0]).is_kept(key[1])
        return is_kept and isinstance(error, OverBudget | OutOfMemory)

    async def let_wait(self, key: Key, lack: str, actor: Actor | None) -> None:
        """Take a version out until there is memory for it; it stays wanted.

        ``actor``: who the event names; None records none, for what waited before.
        """
        writer = self._writer
        reason = waiting_text(writer.state.model(key[0]), *key, lack)
        _log.error("%s/%d is %s", *key, reason)

        def apply(state: DesiredState) -> DesiredState:
            return desired.wait_for_memory(state, *key, lack)

        async def change() -> None:
            writer.restoring.discard(key)
            if actor is None:
                await writer.announce(apply)
                return
            note = Note("waits_for_memory", *key, actor, reason)
            try:
                await writer.change(lambda state, _: apply(state), note)
            except RegistryError as error:
                _log.error("%s/%d: that it waits is not recorded: %s", *key, error)
                await writer.announce(apply)

        await self._workers.take_away(key, change)
        try:
            await self._workers.drained(key)
        except DeadlineExpired as error:
            _log.warning("%s/%d is not given back yet: %s", *key, error)

    async def fail(self, key: Key, reason: str, kind: str, actor: Actor) -> None:
        """Make a version FAILED, and wait until the workers gave it back."""
        try:
            await self.take_out(key, reason, kind, actor)
            await self._workers.drained(key)
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
        await self._workers.take_away(
            key, lambda: writer.change(lambda s, stamp: desired.fail(s, *key, reason, stamp), note)
        )
        writer.restoring.discard(key)

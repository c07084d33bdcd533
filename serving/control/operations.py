"""Operations: what goes on after the call that asked for it was answered: loads and their like.

An Operation is changed only by the control plane, on the event loop; ``progress`` may also be set
from the thread that does its work. Everyone else reads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from registry.errors import NotFound
from registry.ident import shown
from registry.manifest import JsonObject
from serving.errors import QueueFull, message_of

RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
MAX_RUNNING: Final = 256
MAX_FINISHED: Final = 1000


@dataclass(slots=True, eq=False)
class Operation:
    """One load, unload or restart. ``error``: why it failed, for the status code of the answer.

    ``model`` is empty and ``version`` 0 where it is about no version.
    """

    id: str
    kind: str
    model: str
    version: int
    started: str
    state: str = RUNNING
    progress: float = 0.0
    stage: str = "waiting"
    reason: str = ""
    ended: str | None = None
    error: Exception | None = None
    # Of one that ended only the facts are kept: an Event takes more than all of them.
    _done: asyncio.Event | None = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_running(self) -> bool:
        """Say whether the end is still to come."""
        return self.state == RUNNING

    def at(self, stage: str, progress: float) -> None:
        """Note how far it is; progress never goes back."""
        self.stage = stage
        self.progress = max(self.progress, progress)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it ended within the time; None waits for the end."""
        if self._done is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            return False
        return True

    def end(self, now: str, error: Exception | None = None) -> None:
        """Note the end. A second end changes nothing."""
        if not self.is_running:
            return
        self.ended = now
        if error is None:
            self.state, self.stage, self.progress = SUCCEEDED, "done", 1.0
        else:
            self.state, self.error, self.reason = FAILED, error, message_of(error)
            # Whatever the frames of its traceback held would live as long as the list remembers.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        if self._done is not None:
            self._done.set()
            self._done = None

    def to_json(self) -> JsonObject:
        """Return the JSON form that users see."""
        return {
            "id": self.id,
            "kind": self.kind,
            "model": self.model or None,
            "version": self.version or None,
            "state": self.state,
            "progress": round(min(1.0, self.progress), 4),
            "stage": self.stage,
            "reason": self.reason,
            "started": self.started,
            "ended": self.ended,
        }


class Operations:
    """All operations under way and the last MAX_FINISHED that ended."""

    def __init__(self, now: Callable[[], str], max_running: int = MAX_RUNNING) -> None:
        self._now = now
        self._max_running = max_running
        self._running: dict[str, Operation] = {}
        self._finished: OrderedDict[str, Operation] = OrderedDict()

    def begin(self, kind: str, model: str, version: int) -> Operation:
        """Return a new operation, or raise QueueFull."""
        if len(self._running) >= self._max_running:
            raise QueueFull(
                f"{len(self._running)} of {self._max_running} operations are under way or waiting: "
                "try again when some have ended"
            )
        operation = Operation(secrets.token_hex(8), kind, model, version, self._now())
        self._running[operation.id] = operation
        return operation

    def end(self, operation: Operation, error: Exception | None = None) -> None:
        """End an operation and keep it among the last ones."""
        operation.end(self._now(), error)
        if self._running.pop(operation.id, None) is not None:
            self._finished[operation.id] = operation
            while len(self._finished) > MAX_FINISHED:
                self._finished.popitem(last=False)

    def get(self, operation_id: str) -> Operation:
        """Return an operation, or raise NotFound; old ones are forgotten."""
        found = self._running.get(operation_id) or self._finished.get(operation_id)
        if found is None:
            raise NotFound(
                f"no operation {shown(operation_id)}: the last {MAX_FINISHED} that ended "
                "since the server started are kept; the events have what was changed before"
            )
        return found

    def last_of(self, model: str, version: int) -> Operation | None:
        """Return the newest operation under way on a version."""
        mine = [op for op in self._running.values() if (op.model, op.version) == (model, version)]
        return mine[-1] if mine else None

    def under_way(self) -> tuple[Operation, ...]:
        """Return all that have not ended, oldest first."""
        return tuple(self._running.values())

    def latest(self, count: int) -> list[Operation]:
        """Return all under way and the last that ended, newest first, at most ``count``."""
        ended = islice(reversed(self._finished.values()), count)
        return [*reversed(self._running.values()), *ended][:count]

"""Predictions by callback over the data plane's coroutines: a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from serving.data.data_plane import Answer, DataPlane, RequestHead


class InferCall(NamedTuple):
    """A prediction as a front hands it over; ``body`` is decompressed already."""

    protocol: Literal["v1", "v2"]
    model: str
    selector: int | str | None
    head: RequestHead
    body: bytes


class Pending(Protocol):
    """A prediction under way."""

    def cancel(self) -> None:
        """Drop it, for the client left: ``done`` is not called any more."""


class Predictions(Protocol):
    """What the fast lane asks of the data plane."""

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        """Answer ``call``: ``done`` is called once, on the loop, maybe before this returns."""

    def refused(self, error: Exception, head: RequestHead) -> Answer:
        """Return the answer to a request that reached no version, and count it."""


class TaskPredictions:
    """Gives a data plane that answers by coroutine the form of ``Predictions``."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.refused = plane.refused

    def begin(self, call: InferCall, done: Callable[[Answer], None]) -> Pending:
        """Answer ``call`` in a task of its own."""
        compute = self._plane.infer_v2 if call.protocol == "v2" else self._plane.predict_v1
        task = asyncio.create_task(
            compute(call.model, call.selector, call.head, call.body), name="answer"
        )

        def finished(ended: asyncio.Task[Answer]) -> None:
            if not ended.cancelled():
                done(ended.result())

        task.add_done_callback(finished)
        return _Task(task)


class _Task:
    """A prediction that a task computes."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Answer]) -> None:
        self._task = task

    def cancel(self) -> None:
        """Drop it."""
        self._task.cancel()

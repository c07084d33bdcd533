"""Predictions by callback over the data plane's coroutines: a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serving.data.call import Answer, InferCall, Pending
from serving.data.data_plane import DataPlane


class TaskPredictions:
    """Gives a data plane that answers by coroutine the form that the fast lane asks for."""

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

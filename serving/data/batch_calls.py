"""Asks a batcher and waits for the answer, for who has no member of its own as requests have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from models.servable import Array
from serving.codec.packed_rows import Inputs
from serving.data.batch_queue import Failure, Member, RunResult
from serving.data.batch_run import GroupKey, group_key
from serving.data.batcher import Batcher

Outcome: TypeAlias = "Result | Failure"
Done: TypeAlias = Callable[[Outcome], None]


class Result:
    """One request's own outputs, in the order it asked for, and where its time went.

    ``run_rows``: rows of the run that it shared; input, infer and output times are that run's.
    """

    __slots__ = ("arrays", "infer_ns", "input_ns", "output_ns", "queue_ns", "run_rows")

    def __init__(
        self,
        arrays: list[Array],
        queue_ns: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        run_rows: int,
    ) -> None:
        self.arrays = arrays
        self.queue_ns = queue_ns
        self.input_ns = input_ns
        self.infer_ns = infer_ns
        self.output_ns = output_ns
        self.run_rows = run_rows


class CallbackMember(Member):
    """A member that hands its outcome to a function."""

    __slots__ = ("_done",)

    def __init__(
        self,
        inputs: Inputs,
        rows: int,
        key: GroupKey,
        positions: Sequence[int] | None,
        done: Done,
        deadline_ns: int,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.key = key
        self.positions = positions
        self.deadline_ns = deadline_ns
        self._done = done

    def computed(self, run: RunResult, start: int, end: int) -> None:
        """Hand the result over."""
        self._done(
            Result(
                run.share(start, end, self.positions),
                run.started_ns - self.submitted_ns,
                run.input_ns,
                run.infer_ns,
                run.output_ns,
                run.rows,
            )
        )

    def failed(self, error: Failure) -> None:
        """Hand the error over."""
        self._done(error)


async def submit(
    batcher: Batcher,
    inputs: Mapping[str, Array],
    rows: int,
    outputs: tuple[str, ...] | None,
    deadline_ns: int,
) -> Result:
    """Compute as ``enqueue`` does, and wait for it.

    Raises what ``enqueue`` raises and hands over. Cancelling the caller takes the work out of
    the queue; what runs already, runs in vain.
    """
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    member = enqueue(batcher, inputs, rows, outputs, deadline_ns, done)
    try:
        outcome = await future
    finally:
        batcher.drop(member)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def enqueue(
    batcher: Batcher,
    inputs: Mapping[str, Array],
    rows: int,
    outputs: tuple[str, ...] | None,
    deadline_ns: int,
    done: Done,
) -> Member:
    """Compute ``outputs`` (default all) for ``rows`` rows before ``deadline_ns`` of the clock.

    ``done`` gets the result or the error, from the loop and never before this returns.
    Raises and hands over what ``Batcher.admit`` does.
    """
    positions = None if outputs is None else batcher.positions_of(outputs)
    key = group_key(inputs, rows) if batcher.is_batchable else ()
    member = CallbackMember(inputs, rows, key, positions, done, deadline_ns)
    batcher.admit(member)
    return member

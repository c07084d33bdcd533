"""Shadows: copies of answered requests that other versions compute, compared, and nobody waits for.

A copy waits until its worker has nothing else to do: no request under way and none begun for
``QUIET_S``. One is computed at a time, and the next only if no request came meanwhile. A request
that comes while one is computed shares the core with it, so that may happen only to a small share
of all requests: each earns a part of an allowance, each that comes in a run costs a whole one.
Without an allowance a copy waits until the worker was idle so long that a request in just the
moment of the run is as unlikely. What finds no room to wait is shed. Nothing that happens here
reaches a caller: it shows in the metrics, and where a shadow fails, in at most one line of log in
``LOG_EVERY_S``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from models.difference import compare_outputs
from models.servable import Array
from models.signature import Signature, TensorSpec
from registry.errors import NotFound, NotReady
from registry.serving_map import ServingMap
from serving.data.batch_calls import submit
from serving.data.batcher import Batcher
from serving.errors import DeadlineExpired, QueueFull

_log = logging.getLogger(__name__)
# Long beside the moments between the parts of a request, short beside the gaps of a worker that has
# time to spare; a caller who sends one request after another stays undisturbed.
QUIET_S: Final = 0.002
LOG_EVERY_S: Final = 60.0
# A run is ended by the version's own max_run_s; this only bounds what never began.
_DEADLINE_NS: Final = 3_600_000_000_000

# An output is the same one only where its classes stand in the same order.
_Outputs: TypeAlias = Mapping[tuple[str, tuple[str | int, ...] | None], Array]


class InputsDiffer(Exception):
    """The shadow takes other inputs than the version that answered."""


class ShadowCounters(Protocol):
    """What is counted of a version as a shadow; ``VersionCounters`` is one."""

    def shadow_done(self, result: str, difference: float = 0.0) -> None:
        """Count what came of a copy: same, different, failed or shed."""
        ...


class Shadowed(Protocol):
    """A version that answers requests, or gets copies of them."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    @property
    def version(self) -> int:
        """Its number."""
        ...

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        ...

    @property
    def batcher(self) -> Batcher:
        """What runs it."""
        ...

    @property
    def counters(self) -> ShadowCounters:
        """What it counts."""
        ...


S = TypeVar("S", bound=Shadowed)


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker does: requests under way, and all that it ever began."""

    in_flight: int
    begun: int


@dataclass(frozen=True, slots=True, eq=False)
class _Copy(Generic[S]):
    """An answered request for one shadow. Its handle is taken only when its turn comes."""

    version: int
    primary: S
    inputs: Mapping[str, Array]
    rows: int
    expected: _Outputs
    size_bytes: int


class Shadows(Generic[S]):
    """The copies that wait in one worker. Event-loop thread only."""

    def __init__(
        self,
        serving_map: ServingMap[S],
        activity: Callable[[], Activity],
        *,
        max_copies: int,
        max_bytes: int,
        overlap: float,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """At most ``max_copies`` wait, of ``max_bytes`` together. ``activity``: of this worker.

        ``overlap``: the share of requests that may come while a copy is computed, 0 to 1.
        """
        self._serving_map = serving_map
        self._activity = activity
        self._max_copies = max_copies
        self._max_bytes = max_bytes
        self._overlap = overlap
        # Never more than one, so that a long quiet time buys no disturbance in a busy one.
        self._allowance = 1.0
        self._earned_at = 0
        self._clock = clock
        self._quiet_since_ns = clock()
        self._last_run_ns = 0
        self._copies: deque[_Copy[S]] = deque()
        self._held_bytes = 0
        self._begun = -1
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._next_log_s = 0.0

    @property
    def waiting(self) -> int:
        """Copies that wait for their turn."""
        return len(self._copies)

    def offer(
        self,
        primary: S,
        inputs: Mapping[str, Array],
        rows: int,
        outputs: Sequence[str] | None,
        arrays: Sequence[Array],
        body_bytes: int,
    ) -> None:
        """Take a request that the model's route has answered. Never raises, never waits.

        ``inputs``: as decoded for ``primary``, the version that answered. ``arrays``: its answers,
        one for each of ``outputs`` (None: all). ``body_bytes``: the size of the request's body.
        """
        versions = self._serving_map.shadows(primary.model)
        if not versions or self._is_closed:
            return
        try:
            self._take(versions, primary, inputs, rows, outputs, arrays, body_bytes)
        except Exception as error:  # noqa: BLE001 - the request was answered, that must stay so
            self._note(primary, error)

    async def close(self) -> None:
        """Drop what waits and leave what runs; nothing is taken any more."""
        self._is_closed = True
        self._copies.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _take(
        self,
        versions: Sequence[int],
        primary: S,
        inputs: Mapping[str, Array],
        rows: int,
        outputs: Sequence[str] | None,
        arrays: Sequence[Array],
        body_bytes: int,
    ) -> None:
        sizes = [array.nbytes for array in (*inputs.values(), *arrays)]
        size_bytes = body_bytes + sum(sizes)
        expected: _Outputs | None = None
        for version in versions:
            shadow = self._answering(primary.model, version)
            if shadow is None or version == primary.version:
                continue
            has_room = (
                len(self._copies) < self._max_copies
                and self._held_bytes + size_bytes <= self._max_bytes
            )
            if not has_room:
                shadow.counters.shadow_done("shed")
                continue
            if expected is None:
                expected = _named(primary.signature, outputs, [_own(array) for array in arrays])
            self._copies.append(_Copy(version, primary, inputs, rows, expected, size_bytes))
            self._held_bytes += size_bytes
        if self._copies:
            self._look_later()

    def _answering(self, model: str, version: int) -> S | None:
        known = self._serving_map.snapshot.models.get(model)
        view = known.versions.get(version) if known is not None else None
        return view.target if view is not None else None

    def _look_later(self) -> None:
        if self._timer is None and self._task is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    def _look(self) -> None:
        """Begin where nothing else happened since the last look, else look again later."""
        self._timer = None
        may_begin = self._may_begin()
        self._begun = self._activity().begun
        if may_begin:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="shadows")
            self._task.add_done_callback(self._on_end)
        else:
            self._look_later()

    def _may_begin(self) -> bool:
        now = self._activity()
        earned = self._overlap * (now.begun - self._earned_at)
        self._allowance = min(1.0, self._allowance + earned)
        self._earned_at = now.begun
        now_ns = self._clock()
        if now.in_flight or now.begun != self._begun:
            self._quiet_since_ns = now_ns
            return False
        quiet_ns = now_ns - self._quiet_since_ns
        return self._allowance >= 1.0 or self._overlap * quiet_ns >= self._last_run_ns

    def _on_end(self, _: asyncio.Task[None]) -> None:
        self._task = None
        if self._copies:
            self._look_later()

    async def _work(self) -> None:
        while self._copies and self._may_begin():
            copy = self._copies.popleft()
            self._held_bytes -= copy.size_bytes
            start_ns = self._clock()
            try:
                await self._compute(copy)
            except Exception as error:  # noqa: BLE001 - a task boundary: the next copy has its turn
                self._note(copy.primary, error)
            # What arrived while a run held the loop is seen only after a pass over the sockets.
            await asyncio.sleep(0)
            self._allowance -= self._activity().begun - self._begun
            self._last_run_ns = self._clock() - start_ns

    async def _compute(self, copy: _Copy[S]) -> None:
        try:
            handle = self._serving_map.acquire(copy.primary.model, copy.version)
        except (NotFound, NotReady):
            return  # unloaded meanwhile, and its numbers with it
        with handle:
            result, difference = "shed", 0.0
            try:
                result, difference = await self._compared(handle.target, copy)
            except (QueueFull, DeadlineExpired, NotReady):
                result = "shed"
            except Exception as error:  # noqa: BLE001 - whatever a shadow does is its own matter
                result = "failed"
                self._note(handle.target, error)
            finally:
                handle.target.counters.shadow_done(result, difference)

    async def _compared(self, shadow: S, copy: _Copy[S]) -> tuple[str, float]:
        if differing := _differing_input(shadow.signature, copy.primary.signature):
            raise InputsDiffer(
                f"input {differing!r} is not what version {copy.primary.version} takes"
            )
        now = shadow.batcher.statistics()
        if now.runs or now.queued_requests:
            return "shed", 0.0
        done = await submit(
            shadow.batcher, copy.inputs, copy.rows, None, time.monotonic_ns() + _DEADLINE_NS
        )
        got = _named(shadow.signature, None, done.arrays)
        is_same, difference = await asyncio.to_thread(compare_outputs, got, copy.expected)
        return ("same" if is_same else "different"), difference

    def _note(self, version: S, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s < self._next_log_s:
            return
        self._next_log_s = now_s + LOG_EVERY_S
        _log.warning(
            "shadow failed; further ones of the next minute are only counted: %s: %s",
            type(error).__name__,
            error,
            extra={"model": version.model, "version": version.version},
        )


def _own(array: Array) -> Array:
    """Return an array that keeps no larger one alive, as the slice of a shared run does."""
    base = array.base
    is_slice = isinstance(base, np.ndarray) and base.nbytes > array.nbytes
    return array.copy() if is_slice else array


def _named(
    signature: Signature, outputs: Sequence[str] | None, arrays: Sequence[Array]
) -> _Outputs:
    labels = {spec.name: spec.labels for spec in signature.outputs}
    names = labels if outputs is None else outputs
    return {(name, labels[name]): array for name, array in zip(names, arrays, strict=True)}


def _differing_input(ours: Signature, theirs: Signature) -> str:
    """Return the name of an input that decoded values of ``theirs`` do not fit, or nothing."""
    own = {spec.name: _meaning(spec) for spec in ours.inputs}
    given = {spec.name: _meaning(spec) for spec in theirs.inputs}
    return next((name for name in own | given if own.get(name) != given.get(name)), "")


def _meaning(spec: TensorSpec) -> tuple[str, tuple[str, ...] | None, str | None]:
    return spec.datatype, spec.columns, spec.missing

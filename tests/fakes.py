"""Fakes of what the server is built on: servables, a loader, a clock and an executor you drive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from models.errors import LoadFailed, RunTerminated
from models.servable import Array, Inspection, LoadSpec
from models.signature import Signature, TensorSpec

Compute = Callable[[Mapping[str, Array]], list[Array]]

IDENTITY = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),))


def identity(inputs: Mapping[str, Array]) -> list[Array]:
    """Give each input back, in the order of names."""
    return [inputs[name] for name in sorted(inputs)]


def table(*values: float) -> dict[str, Array]:
    """Return one input ``x`` for IDENTITY: a row of four equal numbers for each value."""
    rows = np.repeat(np.asarray(values, dtype=np.float32), 4)
    return {"x": rows.reshape(len(values), 4)}


class ManualClock:
    """A monotonic clock in nanoseconds that moves only when told to."""

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, milliseconds: float) -> None:
        """Let time pass."""
        self.now_ns += int(milliseconds * 1_000_000)


class ManualExecutor(Executor):
    """Runs what was submitted when ``run_next`` says so, in the calling thread."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep a call for ``run_next``."""
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def waiting(self) -> int:
        """Calls that were not run yet."""
        return len(self._waiting)

    def run_next(self) -> None:
        """Run the oldest call and settle its future."""
        future, call = self._waiting.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - the future carries it, as a pool's does
            future.set_exception(error)
        else:
            future.set_result(result)


class FakeServable:
    """Computes with a Python function and remembers each run. Thread-safe like a real one.

    With ``hold`` each run blocks until ``release`` or ``terminate``; ``entered`` is set as soon as
    a run is under way.
    """

    def __init__(
        self,
        compute: Compute = identity,
        signature: Signature = IDENTITY,
        *,
        hold: bool = False,
        is_deaf: bool = False,
    ) -> None:
        self._compute = compute
        self._signature = signature
        self._gate = threading.Event()
        if not hold:
            self._gate.set()
        self._ended = threading.Event()
        self._is_deaf = is_deaf
        self._lock = threading.Lock()
        self.entered = threading.Event()
        self.runs: list[Mapping[str, Array]] = []
        self.is_closed = False
        self.under_way = 0
        self.was_closed_under_a_run = False

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    @property
    def run_rows(self) -> list[int]:
        """Rows of each run, in order."""
        return [len(next(iter(run.values()))) for run in self.runs]

    def hold(self) -> None:
        """Let the next runs wait for ``release``."""
        self.entered.clear()
        self._gate.clear()

    def release(self) -> None:
        """Let runs go on."""
        self._gate.set()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute, or wait and then compute."""
        with self._lock:
            self.runs.append(inputs)
            self.under_way += 1
        try:
            self._ended.clear()
            self.entered.set()
            self._gate.wait(timeout=30)
            if self._ended.is_set():
                raise RunTerminated("ended")
            arrays = self._compute(inputs)
        finally:
            with self._lock:
                self.under_way -= 1
        if outputs is None:
            return arrays
        names = [spec.name for spec in self._signature.outputs]
        return [arrays[names.index(name)] for name in outputs]

    def terminate(self) -> None:
        """End all runs under way, unless this one does not listen."""
        if not self._is_deaf:
            self._ended.set()
            self._gate.set()

    def close(self) -> None:
        """Remember that it was closed, and whether that was safe."""
        self.was_closed_under_a_run |= self.under_way > 0
        self.is_closed = True


class FakeLoader:
    """Gives a FakeServable for each spec; ``failures`` says which versions cannot load, and why."""

    def __init__(
        self,
        compute: Compute = identity,
        failures: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        self._compute = compute
        self.failures = dict(failures or {})
        self.loaded: list[tuple[str, int]] = []
        self.servables: dict[tuple[str, int], FakeServable] = {}

    def load(self, spec: LoadSpec) -> FakeServable:
        """Load a version, or raise LoadFailed with the reason that the test gave."""
        key = (spec.model, spec.version)
        if key in self.failures:
            raise LoadFailed(self.failures[key])
        self.loaded.append(key)
        servable = FakeServable(self._compute, spec.inspection.signature)
        self.servables[key] = servable
        return servable


class FakeCounters:
    """Counts like a version's counters, in plain fields."""

    def __init__(self) -> None:
        self.queue_depth = 0
        self.deepest = 0
        self.runs_under_way = 0
        self.batches: list[int] = []
        self.missing_values = 0
        self.unseen_categories = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "queue_depth":
            super().__setattr__("deepest", max(getattr(self, "deepest", 0), value))

    def run_started(self) -> None:
        """Count a run in."""
        self.runs_under_way += 1

    def run_ended(self) -> None:
        """Count a run out."""
        self.runs_under_way -= 1

    def requests_answered(
        self,
        rows: int,
        total_ns: Sequence[int],
        queue_ns: Sequence[int],
        parts_ns: tuple[int, int, int],
    ) -> None:
        """Take what members that count together would be told."""
        raise AssertionError("members with a callback count nothing")

    def batch_done(
        self,
        rows: int,
        infer_ns: int,
        input_ns: int,
        output_ns: int,
        cpu_ns: int,
        missing_values: int,
        unseen_categories: int,
    ) -> None:
        """Remember the rows of a run that gave answers, and what its inputs lacked."""
        assert min(infer_ns, input_ns, output_ns, cpu_ns) >= 0
        self.batches.append(rows)
        self.missing_values += missing_values
        self.unseen_categories += unseen_categories


def inspection(signature: Signature = IDENTITY, *, is_batchable: bool = True) -> Inspection:
    """Return what an inspection of a small model would say."""
    return Inspection(
        signature=signature,
        is_batchable=is_batchable,
        batch_reason="rows are independent" if is_batchable else "rows are not independent",
        has_control_flow=False,
        run_s=0.0001,
        load_s=0.01,
        private_bytes=0,
    )

"""Finding out how a version really answers: true shapes, run time, and whether rows may be mixed.

Rows of different requests may share a run only if no row sees its neighbours. That is tried, not
believed: a batch must equal its single rows, and stay the same beside rows of huge numbers, NaN
and infinity.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from models.errors import InputRefused, LoadFailed, RunFailed
from models.servable import Array
from models.signature import Signature, TensorSpec
from models.synthetic import MAX_ROWS, Run, Style, first_inputs, make_inputs

# Kernels choose other loops for other sizes, so the last bits of a batch and of a single row
# differ; relative to the largest value of the output.
TOLERANCE: Final = {"FP16": 2e-3, "FP32": 1e-6, "FP64": 1e-6}
_ROWS: Final = (1, 2, 3)
_TIMED_RUNS: Final = 30
_TIMED_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing found; ``signature`` has the shapes as answered."""

    signature: Signature
    is_batchable: bool
    batch_reason: str
    run_s: float


@dataclass(frozen=True, slots=True)
class _Trial:
    run: Run
    signature: Signature
    style: Style
    answers: Mapping[int, Sequence[Array]]

    def inputs(self, rows: int) -> dict[str, Array]:
        return make_inputs(self.signature, self.style, rows)


def probe(run: Run, signature: Signature, reason_not_to_batch: str | None) -> Probed:
    """Try a version with made-up inputs; raises LoadFailed if it refuses all of them."""
    style, answers, refusal = _answers(run, signature)
    trial = _Trial(run, signature, style, answers)
    reason = reason_not_to_batch or refusal or _fixed_input(signature) or _mixing(trial)
    return Probed(
        signature=_corrected(trial, is_single_row=_follows_rows(signature) and len(answers) == 1),
        is_batchable=not reason,
        batch_reason=reason or "rows do not see each other",
        run_s=_run_seconds(trial),
    )


def _answers(run: Run, signature: Signature) -> tuple[Style, dict[int, Sequence[Array]], str]:
    """Return inputs that work, the answers to 1, 2 and 3 rows, and what was refused of these."""
    rows = _ROWS[-1] if _follows_rows(signature) else 1
    refusal = ""
    try:
        # Most rows first: what passes as one row may still hold a value that the graph refuses.
        style, answer = first_inputs(run, signature, rows)
    except (InputRefused, RunFailed) as error:
        refusal = f"it refuses {rows} rows: {error}"
        rows = 1
        try:
            style, answer = first_inputs(run, signature, rows)
        except (InputRefused, RunFailed) as single:
            raise LoadFailed(f"it fails on every input tried: {single}") from None
    answers = {rows: answer}
    for fewer in range(1, rows):
        try:
            answers[fewer] = run(make_inputs(signature, style, fewer), None)
        except (InputRefused, RunFailed) as error:
            refusal = f"it refuses {fewer} rows: {error}"
    return style, dict(sorted(answers.items())), refusal


def _follows_rows(signature: Signature) -> bool:
    return any(spec.shape and spec.shape[0] == -1 for spec in signature.inputs)


def _fixed_input(signature: Signature) -> str:
    if not signature.inputs:
        return "it has no inputs"
    for spec in signature.inputs:
        if not spec.shape or spec.shape[0] != -1:
            return f"input {spec.name!r} has a fixed first dimension"
    return ""


def _mixing(trial: _Trial) -> str:
    """Return how rows of a batch see each other, or an empty string."""
    for check in (_rows_in_rows_out, _batch_equals_single, _neighbours_unseen, _large_batch):
        try:
            reason = check(trial)
        except (InputRefused, RunFailed) as error:
            return f"it refuses rows alone that it takes together: {error}"
        if reason:
            return reason
    return ""


def _rows_in_rows_out(trial: _Trial) -> str:
    for rows, arrays in trial.answers.items():
        for spec, array in zip(trial.signature.outputs, arrays, strict=True):
            if array.ndim == 0 or array.shape[0] != rows:
                return f"output {spec.name!r} answers shape {list(array.shape)} to {rows} rows"
    return ""


def _batch_equals_single(trial: _Trial) -> str:
    return _differs_from_single(trial, max(trial.answers), trial.answers[max(trial.answers)])


def _large_batch(trial: _Trial) -> str:
    """Compare a batch that is large enough for other kernels, unless it would take long."""
    start = time.perf_counter()
    trial.run(trial.inputs(1), None)
    if (time.perf_counter() - start) * MAX_ROWS > 2 * _TIMED_S:
        return ""
    try:
        arrays = trial.run(trial.inputs(MAX_ROWS), None)
    except (InputRefused, RunFailed) as error:
        return f"it refuses {MAX_ROWS} rows: {error}"
    return _differs_from_single(trial, MAX_ROWS, arrays)


def _differs_from_single(trial: _Trial, rows: int, arrays: Sequence[Array]) -> str:
    inputs = trial.inputs(rows)
    for row in range(rows):
        one = {name: array[row : row + 1] for name, array in inputs.items()}
        singles = trial.run(one, None)
        for spec, array, single in zip(trial.signature.outputs, arrays, singles, strict=True):
            if not _is_close(spec, array[row : row + 1], single, _largest(array)):
                return f"output {spec.name!r}: a row answers differently alone and among {rows}"
    return ""


def _neighbours_unseen(trial: _Trial) -> str:
    rows = max(trial.answers)
    calm = trial.answers[rows]
    for name, disturb in _HOSTILE:
        for position in range(rows):
            inputs = {key: array.copy() for key, array in trial.inputs(rows).items()}
            for array in inputs.values():
                disturb(array, position)
            try:
                answers = trial.run(inputs, None)
            except (InputRefused, RunFailed):
                continue  # a batch that fails is run again one by one
            others = np.arange(rows) != position
            for spec, before, after in zip(trial.signature.outputs, calm, answers, strict=True):
                if before.shape != after.shape or not _is_same(before[others], after[others]):
                    return f"output {spec.name!r}: a neighbour {name} changes other rows"
    return ""


def _times_thousand(array: Array, row: int) -> None:
    if array.dtype.kind == "f":
        # FP16 overflows to infinity, which is the point.
        with np.errstate(over="ignore"):
            array[row] *= 1000
    elif array.dtype.kind in "iub":
        array[row] = 0
    else:
        array[row] = "\N{SNOWMAN} hostile"


def _all(value: float) -> Callable[[Array, int], None]:
    def disturb(array: Array, row: int) -> None:
        if array.dtype.kind == "f":
            array[row] = value

    return disturb


_HOSTILE: Final = (
    ("a thousand times as large", _times_thousand),
    ("of NaN", _all(np.nan)),
    ("of infinity", _all(np.inf)),
)


def _is_same(left: Array, right: Array) -> bool:
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))


def _largest(array: Array) -> float:
    if array.dtype.kind != "f":
        return 0.0
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _is_close(spec: TensorSpec, batch: Array, single: Array, scale: float) -> bool:
    if batch.shape != single.shape:
        return False
    tolerance = TOLERANCE.get(spec.datatype)
    if tolerance is None:
        return _is_same(batch, single)
    finite = np.isfinite(single)
    if not _is_same(batch[~finite], single[~finite]):
        return False
    wanted = single[finite].astype(np.float64)
    seen = batch[finite].astype(np.float64)
    return bool(np.abs(wanted - seen).max(initial=0.0) <= tolerance * scale)


def _corrected(trial: _Trial, *, is_single_row: bool) -> Signature:
    outputs = tuple(
        replace(spec, shape=_seen_shape(spec, [answer[index].shape for answer in _all_of(trial)]))
        for index, spec in enumerate(trial.signature.outputs)
    )
    inputs = trial.signature.inputs
    if is_single_row:
        # The graph declares any number of rows but computes only one; the codec then says so.
        inputs = tuple(
            replace(spec, shape=(1, *spec.shape[1:])) if spec.shape[:1] == (-1,) else spec
            for spec in inputs
        )
    return Signature(inputs, outputs)


def _all_of(trial: _Trial) -> list[Sequence[Array]]:
    return list(trial.answers.values())


def _seen_shape(spec: TensorSpec, seen: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape as answered; a size that was declared open and did not vary stays open."""
    if len({len(shape) for shape in seen}) > 1:
        return (-1,) * len(seen[-1])
    declared = spec.shape if len(spec.shape) == len(seen[0]) else (0,) * len(seen[0])
    return tuple(
        -1 if size == -1 or len(set(sizes)) > 1 else sizes[0]
        for size, sizes in zip(declared, zip(*seen, strict=True), strict=True)
    )


def _run_seconds(trial: _Trial) -> float:
    inputs = trial.inputs(min(trial.answers))
    times: list[float] = []
    while len(times) < _TIMED_RUNS and sum(times) < _TIMED_S:
        start = time.perf_counter()
        trial.run(inputs, None)
        times.append(time.perf_counter() - start)
    return statistics.median(times)

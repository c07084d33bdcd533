"""One run of a batch: join the members' rows, compute, check, and give each member its own back.

Pure with respect to the batcher: it takes values and returns values, and any thread may call it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from models.errors import RunFailed
from models.servable import Array, Servable, numpy_dtype, rows_of
from models.signature import Signature
from serving.codec.packed_rows import Inputs, arrays_of, joined
from serving.data.input_look import InputLook

GroupKey: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]


class RowsMismatch(RunFailed):
    """A run that was to answer row by row gave another number of rows than it took."""


class RunTiming(NamedTuple):
    """Where the time of one run went, in nanoseconds, and what its inputs looked like.

    ``cpu_ns``: processor time of the thread that ran it; a runtime's own threads are not in it.
    ``missing_values``, ``unseen_categories``: see ``InputLook``.
    """

    input_ns: int
    infer_ns: int
    output_ns: int
    cpu_ns: int = 0
    missing_values: int = 0
    unseen_categories: int = 0

    @property
    def parts_ns(self) -> tuple[int, int, int]:
        """Input, infer and output time."""
        return self[:3]


def group_key(inputs: Mapping[str, Array], rows: int) -> GroupKey:
    """Return what must be equal for two requests to share a run; empty: this one shares with none.

    A tensor whose first dimension is not the rows (a scalar setting, say) cannot be joined.
    """
    parts = []
    for name in sorted(inputs) if len(inputs) > 1 else inputs:
        array = inputs[name]
        shape = array.shape
        if not shape or shape[0] != rows:
            return ()
        parts.append((name, array.dtype.str, shape[1:]))
    return tuple(parts)


def usual_key(signature: Signature) -> GroupKey:
    """Return the key of requests whose inputs are as declared, rows apart."""
    specs = sorted(signature.inputs, key=lambda spec: spec.name)
    return tuple((s.name, numpy_dtype(s.datatype).str, tuple(s.shape[1:])) for s in specs)


def compute(
    servable: Servable,
    requests: Sequence[Inputs],
    rows: int,
    *,
    is_rowwise: bool,
    look: InputLook,
) -> tuple[list[Array], RunTiming]:
    """Run the inputs of requests, of ``rows`` rows together, as one; return the outputs, whole.

    ``is_rowwise``: the version promises rows in = rows out on the first axis, and the promise is
    checked before anything is handed out: RowsMismatch otherwise. Several members need it.
    """
    cpu_start = time.thread_time_ns()
    start = time.perf_counter_ns()
    joined = _join(requests)
    missing, unseen = look.count(joined)
    joined_at = time.perf_counter_ns()
    arrays = servable.run(joined)
    ran_at = time.perf_counter_ns()
    _check(servable, arrays, rows, is_rowwise=is_rowwise)
    end = time.perf_counter_ns()
    cpu_ns = time.thread_time_ns() - cpu_start
    return arrays, RunTiming(
        joined_at - start, ran_at - joined_at, end - ran_at, cpu_ns, missing, unseen
    )


def _join(requests: Sequence[Inputs]) -> Mapping[str, Array]:
    if (packed := joined(requests)) is not None:
        return packed
    inputs = [arrays_of(one) for one in requests]
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}


def _check(servable: Servable, arrays: Sequence[Array], rows: int, *, is_rowwise: bool) -> None:
    specs = servable.signature.outputs
    if len(arrays) != len(specs):
        raise RunFailed(f"the model gave {len(arrays)} outputs, its signature has {len(specs)}")
    if not is_rowwise:
        return
    for spec, array in zip(specs, arrays, strict=True):
        if array.ndim == 0 or rows_of(array) != rows:
            raise RowsMismatch(
                f"output {spec.name!r} came back with shape {list(array.shape)} for {rows} rows"
            )

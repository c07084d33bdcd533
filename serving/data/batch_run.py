"""One run of a batch: join the members' rows, compute, check, and give each member its own back.

Pure with respect to the batcher: it takes values and returns values, and any thread may call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import TypeAlias

import numpy as np

from models.errors import RunFailed
from models.servable import Array, Servable, numpy_dtype
from models.signature import Signature
from serving.codec.packed_rows import Inputs, are_whole, arrays_of, joined
from serving.data.input_look import InputLook

GroupKey: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]


class RowsMismatch(RunFailed):
    """A run that was to answer row by row gave another number of rows than it took."""


# Where the time of one run went, in nanoseconds: input, infer and output time, and the processor
# time of the thread that ran it (a runtime's own threads are not in it). Then the missing values
# and the unseen categories of its inputs, see ``InputLook``. A plain tuple: one is made a run.
RunTiming: TypeAlias = tuple[int, int, int, int, int, int]


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
    cpu_start = thread_time_ns()
    start = perf_counter_ns()
    inputs: Mapping[str, Array] | None = joined(requests)
    if inputs is not None:
        missing, unseen = look.count(inputs, are_whole=are_whole(requests))
    else:
        inputs = _concatenated(requests)
        missing, unseen = look.count(inputs)
    joined_at = perf_counter_ns()
    arrays = servable.run(inputs)
    ran_at = perf_counter_ns()
    _check(servable, arrays, rows, is_rowwise=is_rowwise)
    end = perf_counter_ns()
    cpu_ns = thread_time_ns() - cpu_start
    return arrays, (joined_at - start, ran_at - joined_at, end - ran_at, cpu_ns, missing, unseen)


def _concatenated(requests: Sequence[Inputs]) -> Mapping[str, Array]:
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
        shape = array.shape
        if not shape or shape[0] != rows:
            raise RowsMismatch(
                f"output {spec.name!r} came back with shape {list(array.shape)} for {rows} rows"
            )

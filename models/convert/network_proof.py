"""The proof of a converted network: its graph beside what its library answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.convert.network_rows import Case
from models.difference import relative_difference
from models.errors import ConversionRefused
from models.parity import Answer, Parity, compare, graph_answer
from models.servable import Array, rows_of
from registry.manifest import JsonObject

_CHUNK_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Proof:
    """How near the graph is. ``non_finite``: rows with NaN or infinity, and how many differ.

    ``is_alone``: the graph fails on several rows at once, so each was compared by itself.
    """

    parity: Parity
    non_finite: int
    non_finite_differing: int
    is_alone: bool

    def to_json(self) -> JsonObject:
        """Return the record for the manifest."""
        record = self.parity.to_json()
        if self.non_finite:
            record["non_finite"] = {
                "rows": self.non_finite,
                "rows_differing": self.non_finite_differing,
            }
        record["rows_alone"] = self.is_alone
        return record


def prove(graph: Path, cases: Sequence[Case], tolerance: float) -> Proof:
    """Compare, and raise ConversionRefused with the figures where the graph is too far off.

    Rows with NaN or infinity, and those where the library itself leaves the finite numbers, are
    counted only: kernels treat them each in their own way, whoever converted the graph.
    """
    answer = graph_answer(graph, _CHUNK_ROWS)
    parity, is_alone = _ordinary(answer, cases, tolerance)
    parity.require()
    counts = [0, 0]
    for case in cases:
        if case.kind not in ("finite", "non-finite"):
            continue
        off, is_strict = _edge(answer, case, tolerance)
        if (off & is_strict).any():
            raise ConversionRefused(
                f"the converted model differs from the native one on {int((off & is_strict).sum())}"
                f" of {len(off)} rows with very large, very small or zero numbers, by more than "
                f"{tolerance:g} of the row's largest output"
            )
        counts[0] += int((~is_strict).sum())
        counts[1] += int((off & ~is_strict).sum())
    return Proof(parity, counts[0], counts[1], is_alone)


def _ordinary(answer: Answer, cases: Sequence[Case], tolerance: float) -> tuple[Parity, bool]:
    alone = [case for case in cases if case.kind == "alone"]
    for case in cases:
        if case.kind != "rows":
            continue
        try:
            return compare(answer, lambda _, c=case: c.outputs, case.inputs, tolerance), False  # type: ignore[misc]
        except ConversionRefused as error:
            # Traced with one row, it may hold that number. The server's own trial says so too.
            if "fails to run" not in str(error):
                raise
    return _alone(answer, alone, tolerance), True


def _alone(answer: Answer, cases: Sequence[Case], tolerance: float) -> Parity:
    differences: list[NDArray[np.float64]] = [np.zeros(1)]
    labels, differing, worst = 0, 0, ""
    for number, case in enumerate(cases):
        ours = answer(case.inputs)
        is_off = False
        for name, expected in case.outputs.items():
            got = _same_shape(name, ours[name], expected)
            if expected.dtype.kind != "f":
                labels += int((got != expected).sum())
                continue
            each = relative_difference(
                np.atleast_1d(got).astype(np.float64), np.atleast_1d(expected).astype(np.float64)
            ).ravel()
            if each.max(initial=0.0) > max(d.max() for d in differences):
                worst = f"output {name!r}, call {number}"
            is_off = is_off or bool((each > tolerance).any())
            differences.append(each if each.size else np.zeros(1))
        differing += is_off
    every = np.concatenate(differences)
    return Parity(
        rows=len(cases),
        max_difference=float(every.max()),
        p999_difference=float(np.quantile(every, 0.999, method="higher")),
        label_disagreements=labels,
        ties=0,
        tolerance=tolerance,
        worst=worst,
        golden=(),
        rows_differing=differing,
    )


def _edge(
    answer: Answer, case: Case, tolerance: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows are off, and which of them must not be; a call without rows is one row."""
    rows = _row_count(case)
    is_strict = np.full(rows, case.kind == "finite")
    try:
        ours: Mapping[str, Array] = answer(case.inputs)
    except ConversionRefused:
        return np.ones(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
    off = np.zeros(rows, dtype=np.bool_)
    for name, expected in case.outputs.items():
        if expected.dtype.kind != "f":
            continue
        got = _same_shape(name, ours[name], expected).astype(np.float64).reshape(rows, -1)
        wanted = expected.astype(np.float64).reshape(rows, -1)
        is_strict &= np.isfinite(wanted).all(axis=1)
        finite = np.isfinite(wanted) & np.isfinite(got)
        # Sums of huge numbers cancel: the row's largest number is the measure of its last digits.
        scale = np.abs(np.where(np.isfinite(wanted), wanted, 0.0)).max(axis=1, initial=1.0)
        with np.errstate(invalid="ignore"):
            far = np.where(finite, np.abs(got - wanted), 0.0) > tolerance * scale[:, None]
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        off |= (far | (~finite & ~same)).any(axis=1)
    return off, is_strict


def _row_count(case: Case) -> int:
    counts = {rows_of(array) for array in (*case.inputs.values(), *case.outputs.values())}
    return counts.pop() if len(counts) == 1 else 1


def _same_shape(name: str, got: Array, expected: Array) -> Array:
    if got.shape != expected.shape:
        raise ConversionRefused(
            f"output {name!r} has shape {got.shape}, the native model gives {expected.shape}"
        )
    return got

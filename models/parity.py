"""The proof of a conversion: the graph's answers beside the native library's, row by row.

A conversion is refused where ``|difference| > tolerance x max(1, |native|)`` for any number, or
where a label differs although the native model is not in two minds about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from models.difference import DEFAULT_TOLERANCE, relative_difference
from models.errors import ConversionRefused
from models.runtime.ort_errors import clean
from models.servable import Array, rows_of
from registry.manifest import Json, JsonObject

GOLDEN_ROWS: Final = 5
_CHUNK_ROWS: Final = 4096

Inputs: TypeAlias = dict[str, Array]
# What a model answers: one array for each output name, rows first.
Answer: TypeAlias = Callable[[Inputs], Mapping[str, Array]]


class ParityRefused(ConversionRefused):
    """The converted model is too far from the native one; ``parity`` has the figures."""

    def __init__(self, message: str, parity: Parity) -> None:
        super().__init__(message)
        self.parity = parity


@dataclass(frozen=True, slots=True)
class Parity:
    """How far the graph is from the native model.

    ``max_difference`` and ``p999_difference`` are relative to ``max(1, |native|)``.
    ``worst``: where the largest difference is, in words. ``rows_differing``: rows with a number
    or a label beyond the tolerance.
    """

    rows: int
    max_difference: float
    p999_difference: float
    label_disagreements: int
    ties: int
    tolerance: float
    worst: str
    golden: tuple[JsonObject, ...]
    rows_differing: int = 0

    @property
    def is_within(self) -> bool:
        """Whether the conversion may be pushed."""
        return self.max_difference <= self.tolerance and self.label_disagreements == 0

    def require(self) -> None:
        """Raise ConversionRefused with the figures unless the conversion is within tolerance."""
        if self.is_within:
            return
        raise ParityRefused(
            f"the converted model differs from the native one: largest difference "
            f"{self.max_difference:.3g} ({self.worst}), 99.9 % are below "
            f"{self.p999_difference:.3g}, the tolerance is {self.tolerance:g}; "
            f"{self.label_disagreements} of {self.rows} labels differ",
            self,
        )

    def to_json(self) -> JsonObject:
        """Return the record for the manifest."""
        golden: list[Json] = list(self.golden)
        return {
            "rows": self.rows,
            "max_difference": self.max_difference,
            "p999_difference": self.p999_difference,
            "label_disagreements": self.label_disagreements,
            "ties": self.ties,
            "tolerance": self.tolerance,
            "golden": golden,
        }


def labels_text(disagreements: int, ties: int) -> str:
    """Say how many labels differ, those included that a refusal does not count."""
    total = disagreements + ties
    text = f"{total} label{'' if total == 1 else 's'} changed"
    if ties:
        text += f" ({ties} where the original's best two are within twice the tolerance)"
    return text


def graph_answer(model: onnx.ModelProto | Path, chunk_rows: int = _CHUNK_ROWS) -> Answer:
    """Return what a graph answers, run here by onnxruntime; raises ConversionRefused.

    A path is for a graph with external data beside it. ``chunk_rows``: rows of each run.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            str(model) if isinstance(model, Path) else model.SerializeToString(),
            options, providers=["CPUExecutionProvider"],
        )  # fmt: skip
    # onnxruntime derives its errors straight from Exception and RuntimeError, one class a status.
    except Exception as error:
        raise ConversionRefused(
            f"the runtime refuses the converted graph: {clean(str(error))}"
        ) from error
    names = [output.name for output in session.get_outputs()]

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        parts: list[Sequence[Array]] = []
        for start in range(0, _rows(inputs), chunk_rows):
            chunk = {name: array[start : start + chunk_rows] for name, array in inputs.items()}
            try:
                parts.append(session.run(names, chunk))
            except Exception as error:
                reason = clean(str(error))
                raise ConversionRefused(f"the converted graph fails to run: {reason}") from error
        if len(parts) == 1:  # a scalar among them cannot be joined
            return dict(zip(names, parts[0], strict=True))
        return {name: np.concatenate([p[i] for p in parts]) for i, name in enumerate(names)}

    return answer


def compare(
    graph: Answer, native: Answer, inputs: Inputs, tolerance: float = DEFAULT_TOLERANCE
) -> Parity:
    """Run both on the same rows and measure; the outputs compared are those ``native`` gives."""
    rows = _rows(inputs)
    theirs = native(inputs)  # first: it says more plainly what is wrong with a row
    ours = graph(inputs)
    worst = ""
    differences: list[NDArray[np.float64]] = []
    is_off = np.zeros(rows, dtype=np.bool_)
    for name, expected in theirs.items():
        got = np.asarray(ours[name])
        if got.shape != expected.shape:
            raise ConversionRefused(
                f"output {name!r} has shape {got.shape}, the native model gives {expected.shape}"
            )
        if expected.dtype.kind != "f":
            continue
        difference = relative_difference(got.astype(np.float64), expected.astype(np.float64))
        if difference.size and difference.max() >= max((d.max() for d in differences), default=0.0):
            at = np.unravel_index(int(difference.argmax()), difference.shape)
            worst = f"output {name!r}, row {at[0]}: {got[at]:.9g} against {expected[at]:.9g}"
        differences.append(difference.ravel())
        is_off |= (difference > tolerance).reshape(rows, -1).any(axis=1)
    every = np.concatenate(differences) if differences else np.zeros(1)
    disagreements, ties = _labels(ours, theirs, tolerance, is_off)
    return Parity(
        rows=rows,
        max_difference=float(every.max(initial=0.0)),
        p999_difference=float(np.quantile(every, 0.999, method="higher")) if every.size else 0.0,
        label_disagreements=disagreements,
        ties=ties,
        tolerance=tolerance,
        worst=worst,
        golden=_golden(inputs, theirs, rows),
        rows_differing=int(is_off.sum()),
    )


def _labels(
    ours: Mapping[str, Array],
    theirs: Mapping[str, Array],
    tolerance: float,
    is_off: NDArray[np.bool_],
) -> tuple[int, int]:
    """Return how many labels differ, and how many of the rows were ties (not counted).

    Rows with such labels are marked in ``is_off``.
    """
    total = ties = 0
    for name, expected in theirs.items():
        if expected.dtype.kind == "f":
            continue
        is_tie = near_ties(expected, theirs, tolerance)
        differs = np.asarray(ours[name]) != expected
        if is_tie is not None:
            ties += int((differs & is_tie).sum())
            differs = differs & ~is_tie
        total += int(differs.sum())
        is_off |= differs.reshape(len(is_off), -1).any(axis=1)
    return total, ties


def near_ties(
    labels: Array, outputs: Mapping[str, Array], tolerance: float
) -> NDArray[np.bool_] | None:
    """Return which of ``labels`` another one is within twice the tolerance of.

    None where no output tells. Of several labels or targets a row, each is judged by its own
    numbers: a label is in two minds at a probability of a half, or a score of zero.
    """
    if labels.ndim == 2:
        return _near_halves(labels, outputs, tolerance)
    is_tie: NDArray[np.bool_] | None = None
    for name, expected in outputs.items():
        gap = _gap(name, expected)
        if gap is not None:
            is_near = gap <= 2 * tolerance
            is_tie = is_near if is_tie is None else is_tie | is_near
    return is_tie


def _near_halves(
    labels: Array, outputs: Mapping[str, Array], tolerance: float
) -> NDArray[np.bool_] | None:
    gaps: NDArray[np.float64] | None = None
    for name, expected in outputs.items():
        stem, _, target = name.partition("_")
        if name == "scores" and expected.shape == labels.shape:
            gaps = np.abs(expected.astype(np.float64))
        elif name == "probabilities" and expected.shape == labels.shape:
            gaps = np.abs(2.0 * expected.astype(np.float64) - 1.0)
        elif stem == "probabilities" and target.isdecimal() and int(target) < labels.shape[1]:
            gaps = np.full(labels.shape, np.inf) if gaps is None else gaps
            gap = _gap(name, expected)
            if gap is not None:
                gaps[:, int(target)] = gap
    return None if gaps is None else gaps <= 2 * tolerance


def _gap(name: str, expected: Array) -> NDArray[np.float64] | None:
    """Return how far each row is from another label, as far as an output tells."""
    if expected.dtype.kind != "f":
        return None
    if expected.ndim == 2 and expected.shape[1] > 1:
        top = np.sort(expected, axis=1)[:, -2:]
        return np.asarray(top[:, 1] - top[:, 0], np.float64)
    # The one score of two classes, or of an outlier: its sign is the label.
    return np.abs(expected.astype(np.float64)) if name == "scores" else None


def _golden(inputs: Inputs, outputs: Mapping[str, Array], rows: int) -> tuple[JsonObject, ...]:
    # JSON says null for infinity and for missing alike: rows that it can tell come first.
    is_plain = np.ones(rows, dtype=bool)
    for array in inputs.values():
        if array.dtype.kind == "f":
            is_plain &= np.isfinite(array[:rows].reshape(rows, -1)).all(axis=1)
    plain = np.flatnonzero(is_plain) if is_plain.any() else np.arange(rows)
    places = np.linspace(0, len(plain) - 1, GOLDEN_ROWS).astype(int) if rows else np.empty(0, int)
    chosen = np.unique(plain[places])
    return tuple(
        {
            "inputs": {name: jsonable(array[row]) for name, array in inputs.items()},
            "outputs": {name: jsonable(array[row]) for name, array in outputs.items()},
        }
        for row in chosen
    )


def jsonable(value: object) -> Json:
    """Return an array or scalar as JSON; what is not finite is null, as in the server's answers."""
    if isinstance(value, np.ndarray):
        return [jsonable(item) for item in value.tolist()]
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, str | int):
        return value
    return None if value is None else str(value)


def _rows(inputs: Inputs) -> int:
    return min((rows_of(array) for array in inputs.values()), default=0)


def edge_values(
    thresholds: NDArray[np.float64], *, is_nan_allowed: bool, is_infinity_allowed: bool,
    dtype: type[np.floating] = np.float32,
) -> Array:  # fmt: skip
    """Return the values of one feature at which a model may go wrong.

    They are each threshold with both its neighbours in ``dtype``, signed zeros, tiny, huge and
    missing ones.
    """
    with np.errstate(over="ignore"):
        cast = thresholds.astype(dtype)
        around = [cast, np.nextafter(cast, dtype(-np.inf)), np.nextafter(cast, dtype(np.inf))]
    special = [0.0, -0.0, 1e-30, -1e-30, 1e-35, -1e-35, 1e30, -1e30]
    values = np.concatenate([*around, np.array(special, dtype=dtype)])
    if not is_infinity_allowed:
        values = values[np.isfinite(values)]
    else:
        values = np.append(values, np.array([np.inf, -np.inf], dtype=dtype))
    return np.append(values, dtype(np.nan)) if is_nan_allowed else values


def edge_matrix(
    edges: Sequence[Array], base: Array | None, rng: np.random.Generator, *, max_rows: int = 20_000
) -> Array:
    """Return rows ``(rows, features)`` in which every edge value of every feature comes up.

    Half of them change one feature of a row of ``base`` (where given), so that the rest of the
    row is ordinary; the other half draw all features from their edges.
    """
    longest = max(len(values) for values in edges)
    rows = min(max(longest, 1000), max_rows)
    drawn = np.stack([_permuted(values, rows, rng) for values in edges], axis=1)
    if base is None or not len(base):
        again = np.stack([_permuted(values, rows, rng) for values in edges], axis=1)
        return np.concatenate([drawn, again])
    single = base[rng.integers(0, len(base), size=rows)].astype(drawn.dtype, copy=True)
    changed = rng.integers(0, len(edges), size=rows)
    for feature, values in enumerate(edges):
        at = np.flatnonzero(changed == feature)
        single[at, feature] = _permuted(values, len(at), rng)
    return np.concatenate([drawn, single])


def _permuted(values: Array, rows: int, rng: np.random.Generator) -> Array:
    copies = -(-rows // len(values))
    if copies == 1:
        return rng.permutation(values)[:rows]
    return rng.permutation(np.tile(values, copies))[:rows]

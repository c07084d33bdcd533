"""Inputs that a network is tried with, and what its own library answers to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from models.convert.sample import Sample
from models.errors import ConversionRefused, InputRefused, RunFailed
from models.parity import Answer, Inputs
from models.servable import Array, rows_of
from models.signature import Signature
from models.synthetic import first_inputs, make_inputs

# rows: every output has a row for each row of the inputs. alone: one call, as it stands.
# finite, non-finite: the same, with numbers at the edges of float32 or beyond them.
Kind: TypeAlias = Literal["rows", "alone", "finite", "non-finite"]

# What a library of networks is asked at once: some take memory by the row.
_CHUNK_ROWS: Final = 256
_ROWS: Final = 256
_ROWS_BYTES: Final = 16 << 20
_ALONE: Final = 6
_EDGE_ROWS: Final = 6
_FINITE: Final = (0.0, -0.0, 1e-30, 1e4, -1e4, 1e15)
_NON_FINITE: Final = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the library's own model."""

    kind: Kind
    inputs: Inputs
    outputs: Mapping[str, Array]


def in_chunks(once: Callable[[Inputs], list[Array]], outputs: Sequence[str]) -> Answer:
    """Return what asks ``once`` for some rows at a time, and names the outputs.

    Inputs that do not all have the same rows are asked as they are.
    """

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        rows = {array.shape[0] for array in inputs.values() if array.ndim}
        if len(rows) != 1 or max(rows) <= _CHUNK_ROWS:
            return dict(zip(outputs, once(inputs), strict=True))
        parts = [
            once({name: array[start : start + _CHUNK_ROWS] for name, array in inputs.items()})
            for start in range(0, max(rows), _CHUNK_ROWS)
        ]
        return {name: np.concatenate([p[i] for p in parts]) for i, name in enumerate(outputs)}

    return answer


def make_cases(
    signature: Signature, native: Answer, sample: Sample | None, example: Inputs | None
) -> list[Case]:
    """Return calls with the answers of ``native``, the rows of ``sample`` among them.

    ``example``: inputs that it accepts, for a model whose inputs do not all begin with the rows.
    Raises ConversionRefused where no inputs are accepted.
    """
    given = sample.inputs(signature) if sample is not None else None
    made, is_rowwise = _made(signature, native, example, given)
    rng = np.random.default_rng(11)
    whole = _joined(given, _spread(made, rng)) if is_rowwise else made
    cases = []
    if is_rowwise:
        cases.append(Case("rows", whole, native(whole)))
        singles = [_cut(whole, row) for row in range(min(_ALONE, _rows(whole)))]
    elif given is not None and _follows_rows(signature):
        singles = [_cut(given, row) for row in range(min(_ALONE, _rows(given)))]
    else:
        singles = [_varied(made, rng, turn) for turn in range(_ALONE)]
    cases.extend(Case("alone", each, native(each)) for each in singles)
    edges: tuple[tuple[Kind, Sequence[float]], ...] = (
        ("finite", _FINITE),
        ("non-finite", _NON_FINITE),
    )
    for kind, values in edges:
        for inputs in _edges(whole if is_rowwise else singles[0], values, is_rowwise, rng):
            try:
                cases.append(Case(kind, inputs, native(inputs)))
            except ConversionRefused:
                continue  # the library refuses such numbers itself
    return cases


def _made(
    signature: Signature, native: Answer, example: Inputs | None, given: Inputs | None
) -> tuple[Inputs, bool]:
    """Return made-up inputs that are accepted, and whether rows in are rows out."""

    def run(inputs: Mapping[str, Array], _: object) -> list[Array]:
        try:
            return list(native(dict(inputs)).values())
        except ConversionRefused as error:
            raise RunFailed(str(error)) from error

    if not _follows_rows(signature):
        if example is None:
            example = _first(run, signature, 1)
        return example, False
    rows = _affordable(signature)
    for count in (5, 1):
        try:
            style, outputs = first_inputs(run, signature, count)
            # Twice, for an axis of another meaning may have that length by chance.
            fewer = run(make_inputs(signature, style, 3), None) if count > 1 else outputs
        except (InputRefused, RunFailed):
            continue
        is_rowwise = count > 1 and all(
            each.ndim > 0 and each.shape[0] == number
            for number, arrays in ((count, outputs), (3, fewer))
            for each in arrays
        )
        return make_inputs(signature, style, rows if is_rowwise else 1), is_rowwise
    if given is not None:  # ids, say, that start high: the rows given will have to do
        answers = native(given).values()  # its refusal, if any, is the one to be told
        return given, all(rows_of(each) == _rows(given) for each in answers)
    return _first(run, signature, 1), False


def _first(
    run: Callable[[Mapping[str, Array], Sequence[str] | None], list[Array]],
    signature: Signature, rows: int,
) -> Inputs:  # fmt: skip
    try:
        style, _ = first_inputs(run, signature, rows)
    except (InputRefused, RunFailed) as error:
        raise ConversionRefused(
            f"no made-up row is accepted by the model ({error}): give real ones with --sample FILE"
        ) from error
    return make_inputs(signature, style, rows)


def _follows_rows(signature: Signature) -> bool:
    return all(spec.shape[:1] == (-1,) for spec in signature.inputs)


def _affordable(signature: Signature) -> int:
    cells = sum(abs(int(np.prod(spec.shape, dtype=np.int64))) for spec in signature.inputs)
    return max(4, min(_ROWS, _ROWS_BYTES // (4 * max(cells, 1))))


def _rows(inputs: Inputs) -> int:
    return min(rows_of(array) for array in inputs.values())


def _cut(inputs: Inputs, row: int) -> Inputs:
    return {name: array[row : row + 1] for name, array in inputs.items()}


def _spread(made: Inputs, rng: np.random.Generator) -> Inputs:
    """Widen the second half of the rows: made-up numbers lie between -1 and 1."""
    wide = {name: array.copy() for name, array in made.items()}
    for array in wide.values():
        if array.dtype.kind == "f":
            half = array[len(array) // 2 :]
            half[...] = rng.normal(scale=3.0, size=half.shape)
    return wide


def _joined(given: Inputs | None, made: Inputs) -> Inputs:
    if given is None:
        return made
    if any(given[name].shape[1:] != array.shape[1:] for name, array in made.items()):
        return given  # lengths of its own: one call cannot hold both
    return {name: np.concatenate([given[name], array]) for name, array in made.items()}


def _varied(inputs: Inputs, rng: np.random.Generator, turn: int) -> Inputs:
    if not turn:
        return inputs
    return {
        name: rng.normal(size=array.shape).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }


def _edges(
    inputs: Inputs, values: Sequence[float], is_rowwise: bool, rng: np.random.Generator
) -> list[Inputs]:
    """Return the inputs with one of ``values`` in one place, and throughout."""
    floats = [name for name, array in inputs.items() if array.dtype.kind == "f" and array.size]
    if not floats:
        return []
    found = []
    for value in values:
        for is_throughout in (False, True):
            changed = {
                name: (array[:_EDGE_ROWS] if is_rowwise else array).copy()
                for name, array in inputs.items()
            }
            for name in floats:
                array = changed[name]
                cells = array.reshape(len(array), -1) if is_rowwise else array.reshape(1, -1)
                places = rng.integers(0, cells.shape[1], size=len(cells))
                with np.errstate(over="ignore"):
                    if is_throughout:
                        cells[...] = value
                    else:
                        cells[np.arange(len(cells)), places] = value
            found.append(changed)
    if not is_rowwise:
        return found
    return [{name: np.concatenate([each[name] for each in found]) for name in inputs}]


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    """Write them as one file of plain arrays; texts are not among them."""
    arrays = {}
    for number, case in enumerate(cases):
        for side, values in (("in", case.inputs), ("out", case.outputs)):
            for name, array in values.items():
                arrays[f"{number}|{case.kind}|{side}|{name}"] = array
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_cases(path: Path) -> list[Case]:
    """Return what ``write_cases`` wrote."""
    found: dict[int, tuple[str, Inputs, Inputs]] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            number, kind, side, name = key.split("|", 3)
            _, inputs, outputs = found.setdefault(int(number), (kind, {}, {}))
            (inputs if side == "in" else outputs)[name] = file[key]
    return [Case(*found[number]) for number in sorted(found)]  # type: ignore[arg-type]

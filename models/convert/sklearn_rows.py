"""Rows to compare a scikit-learn conversion on: a sample, and the model's own edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from models.convert.sklearn_columns import SENTINEL, Column, final_estimator
from models.convert.sklearn_trees import tree_model
from models.convert.term_texts import made_texts
from models.errors import ConversionRefused
from models.parity import Answer, Inputs, edge_matrix, edge_values
from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec

ROWS: Final = 2000
_SEED: Final = 20_240_131
_UNSEEN_TEXT: Final = "a value that no training row had"
_UNSEEN_CODE: Final = -987_654
_MAX_PROBED: Final = 200
_KEPT_ROWS: Final = 500
_MAX_SINGLE_ROWS: Final = 1000
_CHUNK_ROWS: Final = 50
_LEAST_ROWS: Final = 100
_MISSING_SHARE: Final = 0.1
_SPECIAL_SHARE: Final = 0.8
_LEAST_POSITIVE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the native model takes: columns that may be missing or unseen, and infinity."""

    missing: frozenset[str]
    unseen: frozenset[str]
    infinity: bool


def probe(native: Answer, columns: Sequence[Column], signature: Signature) -> Accepted:
    """Ask the native model, one row at a time, what it takes and what it refuses."""
    ordinary = {c.name: _ordinary(c) for c in columns}
    if not _takes(native, columns, signature, ordinary):
        # Perhaps no value that is made up suits it (a text imputer alone, say).
        return Accepted(frozenset(), frozenset(), infinity=False)
    missing, unseen = set(), set()
    numbers = [c for c in columns if c.kind == "number"]
    every = dict.fromkeys((c.name for c in numbers), float("nan"))
    if numbers and _takes(native, columns, signature, ordinary | every):
        missing |= set(every)
        numbers = []
    for column in numbers[:_MAX_PROBED]:
        if _takes(native, columns, signature, ordinary | {column.name: float("nan")}):
            missing.add(column.name)
    for column in columns:
        # A vectoriser takes any text and nothing else.
        if (
            column.kind == "text"
            and not column.vectorizers
            and _takes(native, columns, signature, ordinary | {column.name: SENTINEL})
        ):
            missing.add(column.name)
        if column.kind != "number" and _takes(
            native, columns, signature, ordinary | {column.name: _unseen(column)}
        ):
            unseen.add(column.name)
    infinite = {c.name: float("inf") for c in columns if c.kind == "number"}
    infinity = bool(infinite) and _takes(native, columns, signature, ordinary | infinite)
    return Accepted(frozenset(missing), frozenset(unseen), infinity)


def pack(values: Mapping[str, Array], columns: Sequence[Column], signature: Signature) -> Inputs:
    """Return columns of values as served inputs: one matrix, or one input for each."""
    if len(signature.inputs) == 1 and signature.inputs[0].shape != (-1, 1):
        spec = signature.inputs[0]
        if len(spec.shape) == 1:
            return {spec.name: values[columns[0].name]}
        matrix = np.stack([values[c.name] for c in columns], axis=1)
        return {spec.name: matrix.astype(numpy_dtype(spec.datatype))}
    by_name = {spec.name: spec for spec in signature.inputs}
    names = [c.name for c in columns]
    if len(by_name) == 1 and len(names) == 1:
        by_name = {names[0]: signature.inputs[0]}
    return {by_name[name].name: _cast(values[name], by_name[name])[:, None] for name in names}


def make_rows(
    estimator: Any, columns: Sequence[Column], signature: Signature, accepted: Accepted,
    sample: Inputs | None, native: Answer,
) -> Inputs:  # fmt: skip
    """Return the rows to compare on, as served inputs; of those made up, the ones it takes."""
    if sample is not None:
        native(sample)  # what is wrong with a row of it is the user's to know, at once
    rng = np.random.default_rng(_SEED)
    rows: list[Inputs] = []
    is_matrix = len(signature.inputs) == 1 and all(c.kind == "number" for c in columns)
    if is_matrix:
        name = signature.inputs[0].name
        base = sample[name] if sample is not None else None
        rows.append({name: _numbers(estimator, columns, accepted, base, rng)})
        near = _near_thresholds(estimator, columns, rng)
        if near is not None:
            rows.append({name: near})
    else:
        drawn = {c.name: _draw(c, ROWS, accepted, rng) for c in columns}
        rows.append(pack(drawn, columns, signature))
        if sample is not None:
            rows.append(_one_changed(sample, rows[-1], rng))
    datatypes = {spec.name: numpy_dtype(spec.datatype) for spec in signature.inputs}
    made = {
        name: np.concatenate([part[name] for part in rows]).astype(dtype)
        for name, dtype in datatypes.items()
    }
    made = accepted_rows(native, made)
    if sample is None:
        return made
    return {name: np.concatenate([sample[name].astype(v.dtype), v]) for name, v in made.items()}


def accepted_rows(native: Answer, rows: Inputs) -> Inputs:
    """Return the rows that the native model takes at all: a logarithm, say, refuses many.

    Raises ConversionRefused where it refuses nearly all of them.
    """
    if _answers(native, rows):
        return rows
    count = len(next(iter(rows.values())))
    order = np.random.default_rng(_SEED).permutation(count)[:_MAX_SINGLE_ROWS].tolist()
    kept: list[int] = []
    for start in range(0, len(order), _CHUNK_ROWS):
        chunk = order[start : start + _CHUNK_ROWS]
        if _answers(native, _picked(rows, chunk)):
            kept.extend(chunk)
        else:
            kept.extend(i for i in chunk if _answers(native, _picked(rows, [i])))
    if len(kept) < _LEAST_ROWS:
        native(rows)  # says itself what is wrong with them
    return _picked(rows, kept)


def _picked(rows: Inputs, at: Sequence[int]) -> Inputs:
    return {name: values[list(at)] for name, values in rows.items()}


def _answers(native: Answer, rows: Inputs) -> bool:
    try:
        native(rows)
    except ConversionRefused:
        return False
    return True


def missing_rows(
    column: Column, columns: Sequence[Column], signature: Signature, accepted: Accepted
) -> Inputs:
    """Return ordinary rows in which one text column is missing."""
    rng = np.random.default_rng(_SEED)
    values = {c.name: _draw(c, 200, accepted, rng) for c in columns}
    values[column.name] = np.full(200, SENTINEL, dtype=object)
    return pack(values, columns, signature)


def ordinary_row(columns: Sequence[Column], signature: Signature) -> Inputs:
    """Return one row of ordinary values."""
    values: dict[str, Array] = {}
    for column in columns:
        value = _ordinary(column)
        values[column.name] = np.array([value], dtype=object if isinstance(value, str) else None)
    return pack(values, columns, signature)


def _takes(
    native: Answer, columns: Sequence[Column], signature: Signature, row: Mapping[str, object]
) -> bool:
    values: dict[str, Array] = {}
    for name, value in row.items():
        is_text = isinstance(value, str)
        values[name] = np.array([value], dtype=object if is_text else None)
    try:
        native(pack(values, columns, signature))
    except (ValueError, TypeError, OverflowError, ConversionRefused):
        return False
    return True


def _ordinary(column: Column) -> object:
    if column.kind == "number":
        return column.center or float(column.is_positive)
    if column.categories:
        return column.categories[0]
    return "x" if column.kind == "text" else 0


def _unseen(column: Column) -> object:
    return _UNSEEN_TEXT if column.kind == "text" else _UNSEEN_CODE


def _draw(column: Column, rows: int, accepted: Accepted, rng: np.random.Generator) -> Array:
    if column.kind == "number":
        values = column.center + column.scale * rng.normal(size=rows) * 3
        values[rng.integers(0, rows, size=rows // 20)] = 0.0
        if column.is_positive:
            values = np.abs(values) + _LEAST_POSITIVE
        if column.special:
            at = rng.random(rows) < _SPECIAL_SHARE
            values[at] = rng.choice(np.array(column.special), size=int(at.sum()))
        if column.name in accepted.missing:
            values[rng.random(rows) < _MISSING_SHARE] = np.nan
        return values
    if column.vectorizers:
        return made_texts(column.vectorizers, column.categories, rows, rng)
    choices: list[object] = list(column.categories) or [_ordinary(column)]
    if column.name in accepted.unseen:
        choices.append(_unseen(column))
    if column.name in accepted.missing:
        choices.append(SENTINEL)
    picked = [choices[i] for i in rng.integers(0, len(choices), size=rows)]
    return np.array(picked, dtype=object if column.kind == "text" else np.int64)


def _numbers(
    estimator: Any, columns: Sequence[Column], accepted: Accepted, base: Array | None,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    trees = tree_model(estimator)
    if trees is not None:
        edges = [
            edge_values(
                np.concatenate([thresholds, column.special]),
                is_nan_allowed=column.name in accepted.missing,
                is_infinity_allowed=accepted.infinity and not column.special,
            )
            for column, thresholds in zip(columns, trees.thresholds(len(columns)), strict=True)
        ]
        return edge_matrix(edges, base, rng)
    ordinary = np.stack([_draw(c, ROWS, accepted, rng) for c in columns], axis=1)
    edges = []
    for column in columns:
        special = [0.0, -0.0, 1e-30, -1e-30, column.center, column.center + 10 * column.scale,
                   column.center - 10 * column.scale]  # fmt: skip
        special += column.special
        if column.is_positive:
            special = [value for value in special if value > 0.0]
        if column.name in accepted.missing:
            special.append(np.nan)
        edges.append(np.array(special, dtype=np.float32))
    made = edge_matrix(edges, base if base is not None else ordinary, rng)
    parts = [ordinary.astype(np.float32), made]
    known = _rows_of_training(estimator, len(columns))
    if known is not None:
        parts.append(known)
    return np.concatenate(parts)


def _rows_of_training(estimator: Any, width: int) -> Array | None:
    """Return rows that a model keeps, and points halfway between two: equals are found there."""
    final = final_estimator(estimator)
    names = ("_fit_X", "X_fit_", "support_vectors_")
    rows = next((rows for name in names if (rows := getattr(final, name, None)) is not None), None)
    if rows is None:
        return None
    rows = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, np.float64)
    rows = rows[:: max(1, len(rows) // _KEPT_ROWS)]
    if type(estimator).__name__ == "Pipeline":
        try:
            rows = np.asarray(estimator[:-1].inverse_transform(rows))
        except (AttributeError, ValueError, NotImplementedError):
            return None
    if rows.ndim != 2 or rows.shape[1] != width:
        return None
    between = (rows + np.roll(rows, 1, axis=0)) / 2
    return np.concatenate([rows, between]).astype(np.float32)


def _near_thresholds(
    estimator: Any, columns: Sequence[Column], rng: np.random.Generator
) -> Array | None:
    """Return rows that come to lie at a tree's thresholds once the steps before it have run."""
    trees = tree_model(final_estimator(estimator))
    if trees is None or type(estimator).__name__ != "Pipeline":
        return None
    before = estimator[:-1]
    width = getattr(final_estimator(estimator), "n_features_in_", len(columns))
    edges = [
        edge_values(t, is_nan_allowed=False, is_infinity_allowed=False)
        for t in trees.thresholds(width)
    ]
    matrix = edge_matrix([e[np.abs(e) < 1e20] for e in edges], None, rng)
    try:
        rows = np.asarray(before.inverse_transform(matrix.astype(np.float64)))
    except (AttributeError, ValueError, NotImplementedError):
        return None
    if rows.shape != (len(matrix), len(columns)):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(rows.astype(np.float32)[np.isfinite(rows).all(axis=1)])


def _one_changed(sample: Inputs, drawn: Inputs, rng: np.random.Generator) -> Inputs:
    """Return rows of the sample in each of which one column is drawn anew."""
    names = list(sample)
    count = len(next(iter(sample.values())))
    at = rng.integers(0, count, size=ROWS)
    changed = rng.integers(0, len(names), size=ROWS)
    result = {}
    for index, name in enumerate(names):
        values = sample[name][at].copy()
        here = changed == index
        values[here] = drawn[name][rng.integers(0, len(drawn[name]), size=int(here.sum()))]
        result[name] = values
    return result


def _cast(values: Array, spec: TensorSpec) -> Array:
    dtype = numpy_dtype(spec.datatype)
    if dtype.kind == "i" and values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{spec.name}: a whole number cannot be missing")
        return np.rint(values).astype(dtype)
    return values.astype(dtype)

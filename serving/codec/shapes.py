"""What a request sends for an input against what the signature declares for it.

Two leniences, both without ambiguity: ``[N]`` and ``[N, 1]`` stand for each other, and a table
that a version takes as one matrix may be sent as one input for each of its columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from models.servable import Array, rows_of
from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from registry.ident import shown


def fitted_shape(shape: tuple[int, ...], spec: TensorSpec, where: str) -> tuple[int, ...]:
    """Return the shape under which a tensor of ``shape`` enters the graph, or raise InvalidInput.

    A tensor ``[N]`` enters an input ``[-1, 1]`` as ``[N, 1]``, and the other way round.
    """
    declared = spec.shape
    if len(shape) != len(declared):
        if len(shape) == 1 and len(declared) == 2 and declared[1] == 1:
            shape = (shape[0], 1)
        elif len(shape) == 2 and len(declared) == 1 and shape[1] == 1:
            shape = (shape[0],)
    if len(shape) == len(declared):
        for size, wanted in zip(shape, declared, strict=True):
            if wanted not in (-1, size):
                break
        else:
            return shape
    raise InvalidInput(
        f"{where}: shape {list(shape)} does not fit {list(declared)}, where -1 is any size"
    )


def table_spec(signature: Signature) -> TensorSpec | None:
    """Return the one input that is a table with named columns, or None."""
    if len(signature.inputs) == 1 and signature.inputs[0].columns:
        return signature.inputs[0]
    return None


def is_unnamed(signature: Signature) -> bool:
    """Return whether a model takes one matrix ``(rows, features)`` whose columns have no names."""
    first = signature.inputs[0]
    return len(signature.inputs) == 1 and len(first.shape) == 2 and not first.columns


def is_numbered(signature: Signature, names: Collection[object]) -> bool:
    """Return whether ``names`` are "0", "1", ... for such a matrix.

    A DataFrame without names for its columns has these, and so has its JSON by rows.
    """
    if not is_unnamed(signature) or signature.inputs[0].name in names:
        return False
    return bool(names) and set(names) == {str(index) for index in range(len(names))}


def is_by_column(table: TensorSpec, names: Collection[object]) -> bool:
    """Return whether ``names`` are meant as columns of a table rather than as its own name.

    Where a column is called like the table, only all columns together are columns.
    """
    columns = set(table.columns or ())
    return table.name not in names or (table.name in columns and columns.issubset(names))


def column_spec(table: TensorSpec, column: str) -> TensorSpec:
    """Return what one column of a table must be when it is sent by itself."""
    return TensorSpec(
        column, table.datatype, (-1, 1), missing=table.missing, integers=table.integers
    )


def assembled(table: TensorSpec, columns: Mapping[str, Array]) -> Array:
    """Return the matrix ``(rows, features)`` of a table that came as columns ``(rows, 1)``."""
    names = table.columns or ()
    for name in names:
        if name not in columns:
            raise InvalidInput(f"input {shown(name)} is missing: it is a column of {table.name!r}")
    arrays = [columns[name] for name in names]
    rows = rows_of(arrays[0])
    for name, array in zip(names, arrays, strict=True):
        if rows_of(array) != rows:
            raise InvalidInput(
                f"input {shown(name)}: {rows_of(array)} rows, but {names[0]!r} has {rows}"
            )
    return np.concatenate(arrays, axis=1)


def checked_rows(
    inputs: Mapping[str, Array], signature: Signature, *, is_batchable: bool = True
) -> int:
    """Return the rows of a request: what all inputs with a free first dimension have.

    1 where no input has one: a fixed shape is one piece of work. Where the version is not batched,
    inputs may differ (their free dimensions need not be rows), and the first counts.
    """
    rows = -1
    first = ""
    for spec in signature.inputs:
        if not spec.shape or spec.shape[0] != -1:
            continue
        found = rows_of(inputs[spec.name])
        if rows < 0:
            rows, first = found, spec.name
        elif found != rows and is_batchable:
            raise InvalidInput(
                f"input {spec.name!r}: {found} rows, but input {first!r} has {rows}: "
                "all inputs of a request need the same number"
            )
    return rows if rows >= 0 else 1

"""The signature of an MLflow folder beside that of the converted model: the same columns, or none.

MLflow keeps it as JSON texts: a list of columns with name and type, or of tensors with a shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from models.errors import ConversionRefused
from models.signature import Signature, TensorSpec, parse_signature
from registry.ident import shown
from registry.manifest import JsonObject

_WHERE: Final = "MLmodel: signature.inputs"
_WHOLE: Final = ("integer", "long", "boolean")
_NUMBERS: Final = (*_WHOLE, "float", "double")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the signature; ``name`` is None where columns have none."""

    name: str | None
    type: str


def fitted(signature: JsonObject, saved: object) -> tuple[JsonObject, tuple[str, ...]]:
    """Return the model's signature, and the columns of ``saved`` that the model does not look at.

    A table without names of its own gets those that MLflow knows. Raises ConversionRefused naming
    the column that does not fit.
    """
    inputs = _inputs(saved)
    if inputs is None:
        return signature, ()
    model = parse_signature(signature)
    width = _tensor_width(inputs)
    if width is not None:
        _check_width(model, width)
        return signature, ()
    columns = _columns(inputs)
    if columns is None:
        return signature, ()
    table = model.inputs[0] if len(model.inputs) == 1 else None
    if table is not None and len(table.shape) == 2 and table.shape[1] != 1:
        return _table(model, table, columns), ()
    return signature, _by_name(model.inputs, columns)


def _inputs(saved: object) -> Sequence[Any] | None:
    if not isinstance(saved, Mapping) or saved.get("inputs") is None:
        return None
    text = saved["inputs"]
    try:
        inputs = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise ConversionRefused(f"{_WHERE}: not JSON: {error}") from error
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise ConversionRefused(f"{_WHERE}: expected a list of objects, got {shown(text)}")
    return inputs


def _tensor_width(inputs: Sequence[dict[str, Any]]) -> int | None:
    """Return the features of a matrix, -1 for any; None where the signature is by column."""
    if not inputs or any(item.get("type") != "tensor" for item in inputs):
        return None
    spec = inputs[0].get("tensor-spec")
    shape = spec.get("shape") if isinstance(spec, dict) else None
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise ConversionRefused(f"{_WHERE}[0]: tensor-spec.shape {shown(shape)} is no shape")
    return int(shape[1]) if len(inputs) == 1 and len(shape) == 2 else -1


def _check_width(model: Signature, width: int) -> None:
    spec = model.inputs[0]
    takes = spec.shape[1] if len(model.inputs) == 1 else len(model.inputs)
    if width >= 0 and len(spec.shape) == 2 and takes not in (-1, width):
        raise ConversionRefused(f"{_WHERE}[0]: {width} columns, the model takes {takes}")


def _columns(inputs: Sequence[dict[str, Any]]) -> list[Column] | None:
    """Return the columns; None where one of them is no plain value (a list, an object)."""
    columns = []
    for index, item in enumerate(inputs):
        kind, name = item.get("type"), item.get("name")
        if not isinstance(kind, str) or not (name is None or isinstance(name, str)):
            raise ConversionRefused(f"{_WHERE}[{index}]: expected name and type")
        if kind in ("array", "object", "map", "any", "tensor"):
            return None
        columns.append(Column(name, kind))
    return columns


def _table(model: Signature, table: TensorSpec, columns: Sequence[Column]) -> JsonObject:
    takes = table.shape[1]
    names = [column.name for column in columns if column.name is not None]
    if table.columns is not None and names:
        _same_names(names, table.columns)
    elif takes not in (-1, len(columns)):
        raise ConversionRefused(f"{_WHERE}: {len(columns)} columns, the model takes {takes}")
    for column in columns:
        _check_type(column, table)
    if table.columns is not None or len(set(names)) != len(columns):
        return model.to_json()
    named = replace(table, columns=tuple(names))
    return replace(model, inputs=(named,)).to_json()


def _same_names(names: Sequence[str], takes: Sequence[str]) -> None:
    for name in takes:
        if name not in names:
            raise ConversionRefused(f"{_WHERE}: column {shown(name)}, which the model takes, lacks")
    for name in names:
        if name not in takes:
            raise ConversionRefused(f"{_WHERE}: column {shown(name)} is none that the model takes")


def _by_name(specs: Sequence[TensorSpec], columns: Sequence[Column]) -> tuple[str, ...]:
    """Check a model with an input for each column; pipelines may drop some of the signature."""
    by_name = {column.name: column for column in columns}
    if None in by_name:
        if len(columns) != len(specs):
            raise ConversionRefused(
                f"{_WHERE}: {len(columns)} columns, the model takes {len(specs)}"
            )
        return ()
    for spec in specs:
        column = by_name.pop(spec.name, None)
        if column is None:
            raise ConversionRefused(
                f"{_WHERE}: column {shown(spec.name)}, which the model takes, lacks"
            )
        _check_type(column, spec)
    return tuple(name for name in by_name if name is not None)


def _check_type(column: Column, spec: TensorSpec) -> None:
    if spec.datatype == "BYTES":
        fits = column.type == "string" or (spec.integers and column.type in _WHOLE)
    elif spec.datatype.startswith("FP"):
        fits = column.type in _NUMBERS
    else:
        fits = column.type in _WHOLE
    if not fits:
        raise ConversionRefused(
            f"{_WHERE}: column {shown(column.name)} is {shown(column.type)}, the model takes "
            f"{spec.datatype}"
        )

"""The row format of TensorFlow Serving and KServe V1, for tables and people with curl.

``{"instances": [...]}`` holds one entry a row: a value, a list, or an object by column name.
DataFrames as MLflow sends them are rows too (see ``dataframe``).
``{"inputs": ...}`` holds whole tensors: one, or an object of them by input or column name. Columns
that the version does not know are ignored and counted, so that clients can send a new column
before the version that needs it; columns that it needs must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from models.servable import Array, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.errors import InvalidInput
from registry.ident import shown
from serving.codec import dataframe, output, shapes, tensors
from serving.codec.limits import DEFAULT_LIMITS, Limits, checked_count
from serving.codec.parse import kind_of, parse_object


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A V1 request. ``is_row_format``: it came as ``instances`` and is answered by rows.

    ``rows``: see ``shapes.checked_rows``. ``instances``: how many there were; only where all shapes
    are fixed is that not the same. ``unknown_columns``: how many different names were sent that the
    version does not know.
    """

    inputs: dict[str, Array]
    rows: int
    is_row_format: bool
    instances: int = 0
    unknown_columns: int = 0


def decode_predict(
    body: bytes,
    signature: Signature,
    limits: Limits = DEFAULT_LIMITS,
    *,
    is_batchable: bool = True,
) -> PredictCall:
    """Return the call in a request's body, or raise InvalidInput naming row, column and value."""
    document = parse_object(body)
    field = dataframe.field_of(document)
    if field:
        document = {"instances": dataframe.rows_of(document, field)}
    with dataframe.named(field):
        return decode_document(document, signature, limits, is_batchable=is_batchable)


def decode_document(
    document: Mapping[str, Any], signature: Signature, limits: Limits, *, is_batchable: bool
) -> PredictCall:
    """Return the call in a decoded body that holds ``instances`` or ``inputs``."""
    if ("instances" in document) == ("inputs" in document):
        raise InvalidInput('body: exactly one of "instances" (rows) and "inputs" is needed')
    name = document.get("signature_name")
    if name is not None and type(name) is not str:
        raise InvalidInput(f"signature_name: expected a string, got {kind_of(name)}")
    reader = _Reader(signature, limits)
    is_row_format = "instances" in document
    instances = document.get("instances") if is_row_format else []
    if type(instances) is not list:
        raise InvalidInput(f"instances: expected a list of rows, got {kind_of(instances)}")
    inputs = reader.rows(instances) if is_row_format else reader.columnar(document["inputs"])
    rows = shapes.checked_rows(inputs, signature, is_batchable=is_batchable)
    return PredictCall(inputs, rows, is_row_format, len(instances), reader.unknown)


def encode_predict(call: PredictCall, arrays: Sequence[Array], signature: Signature) -> bytes:
    """Return the answer's body. ``arrays``: all outputs in the order of the signature.

    By rows: the value of the one output, or an object of all outputs by name, for each row.
    """
    specs = signature.outputs
    if not call.is_row_format:
        values = {
            spec.name: output.json_nested(array) for spec, array in zip(specs, arrays, strict=True)
        }
        return output.dumped({"outputs": values[specs[0].name] if len(specs) == 1 else values})
    for spec, array in zip(specs, arrays, strict=True):
        if not _has_rows(array, spec, call.instances, signature):
            raise InvalidInput(
                f"instances: output {spec.name!r} has shape {list(array.shape)} and cannot be "
                f'split into {call.instances} rows: send "inputs" instead'
            )
    if len(specs) == 1:
        return output.dumped({"predictions": output.json_nested(arrays[0])})
    names = [spec.name for spec in specs]
    columns = [output.json_rows(array) for array in arrays]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return output.dumped({"predictions": rows})


class _Reader:
    """Reads rows or tensors into the inputs of one signature; counts unknown names."""

    def __init__(self, signature: Signature, limits: Limits) -> None:
        self._signature = signature
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._table = shapes.table_spec(signature)
        self._limits = limits
        self.unknown = 0

    def rows(self, rows: list[Any]) -> dict[str, Array]:
        is_named = bool(rows) and type(rows[0]) is dict
        for index, row in enumerate(rows):
            if (type(row) is dict) != is_named:
                raise InvalidInput(
                    f"instances[{index}]: expected {'an object' if is_named else 'no object'} "
                    f"as the rows before, got {kind_of(row)}"
                )
        if is_named:
            return self._named_rows(rows)
        if len(self._specs) == 1:
            spec = self._signature.inputs[0]
            return {spec.name: self._tensor(rows, spec, "instances")}
        return self._positional_rows(rows)

    def columnar(self, value: Any) -> dict[str, Array]:
        if type(value) is not dict:
            if len(self._specs) != 1:
                raise InvalidInput(
                    f"inputs: expected an object by name, for the model takes "
                    f"{len(self._specs)} inputs: {_listed(self._specs)}"
                )
            spec = self._signature.inputs[0]
            return {spec.name: self._tensor(value, spec, "inputs")}
        table = self._table
        specs = self._specs
        if table is not None and table.columns and shapes.is_by_column(table, value):
            specs = {column: shapes.column_spec(table, column) for column in table.columns}
        for name in specs:
            if name not in value:
                raise InvalidInput(f"inputs: {shown(name)} is missing: the model needs it")
        self.unknown = len(value.keys() - specs.keys())
        arrays = {
            name: self._tensor(value[name], spec, f"inputs[{shown(name)}]")
            for name, spec in specs.items()
        }
        if table is not None and specs is not self._specs:
            return {table.name: shapes.assembled(table, arrays)}
        return arrays

    def _named_rows(self, rows: list[dict[str, Any]]) -> dict[str, Array]:
        table = self._table
        if table is not None and table.columns and shapes.is_by_column(table, rows[0]):
            columns = table.columns
            flat = list(chain.from_iterable(self._picked(rows, columns)))
            shape = shapes.fitted_shape((len(rows), len(columns)), table, "instances")
            self._reserve(shape, table, "instances")
            values = tensors.from_flat(
                flat, table.datatype, _cell(columns), table.missing, is_table=True,
                integers=table.integers,
            )  # fmt: skip
            return {table.name: values.reshape(shape)}
        names = tuple(self._specs)
        if shapes.is_numbered(self._signature, rows[0]):
            numbers = tuple(map(str, range(len(rows[0]))))
            return self.rows([list(row) for row in self._picked(rows, numbers)])
        return self._from_columns(list(zip(*self._picked(rows, names), strict=True)))

    def _positional_rows(self, rows: list[Any]) -> dict[str, Array]:
        """Take lists as one value for each input, in the signature's order."""
        for index, row in enumerate(rows):
            if type(row) is not list or len(row) != len(self._specs):
                found = f"{len(row)} values" if type(row) is list else kind_of(row)
                raise InvalidInput(
                    f"instances[{index}]: {found}, but the model takes {len(self._specs)} inputs: "
                    f"send an object with {_listed(self._specs)}"
                )
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._specs)
        return self._from_columns(columns)

    def _from_columns(self, columns: list[tuple[Any, ...]]) -> dict[str, Array]:
        arrays = {}
        for (name, spec), column in zip(self._specs.items(), columns, strict=True):
            arrays[name] = self._tensor(list(column), spec, "instances", key=f"[{shown(name)}]")
        return arrays

    def _picked(self, rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Return the wanted values of each row, in order; counts the names nobody wants."""
        try:
            picked = [tuple([row[name] for name in names]) for row in rows]
        except KeyError:
            index, name = next(
                (i, name) for i, row in enumerate(rows) for name in names if name not in row
            )
            why = (
                "its columns have no names: send each row as a list of its values"
                if shapes.is_unnamed(self._signature)
                else "the model needs it (null stands for a missing value)"
            )
            raise InvalidInput(
                f"instances[{index}]: column {shown(name)} is missing: {why}"
            ) from None
        if any(len(row) != len(names) for row in rows):
            self.unknown = len(set().union(*rows) - set(names))
        return picked

    def _tensor(self, data: Any, spec: TensorSpec, where: str, key: str = "") -> Array:
        sent = tensors.nested_shape(data, where + key, self._limits.max_nesting)
        if sent[:1] == (0,) and len(spec.shape) > 1:
            # No rows say nothing of the other dimensions: take the declared ones.
            sent = (0, *(max(size, 0) for size in spec.shape[1:]))
        shape = shapes.fitted_shape(sent, spec, where + key)
        self._reserve(shape, spec, where)
        flat = tensors.flatten(data, sent, where + key, self._limits.max_nesting)
        per_row = len(flat) // sent[0] if sent and sent[0] else 1
        locate = _element(where, key, per_row)
        return tensors.from_flat(
            flat, spec.datatype, locate, spec.missing, is_table=True, integers=spec.integers
        ).reshape(shape)

    def _reserve(self, shape: tuple[int, ...], spec: TensorSpec, where: str) -> None:
        checked_count(shape, numpy_dtype(spec.datatype).itemsize, where, self._limits)


def _has_rows(array: Array, spec: TensorSpec, instances: int, signature: Signature) -> bool:
    """Whether the first dimension of an output is the instances, and not as long by chance."""
    if array.ndim == 0 or array.shape[0] != instances:
        return False
    fixed = {other.shape[0] for other in signature.inputs if other.shape}
    return instances == 1 or spec.shape[:1] == (-1,) or spec.shape[0] in fixed


def _cell(columns: tuple[str, ...]) -> Callable[[int], str]:
    return lambda i: f"instances[{i // len(columns)}][{shown(columns[i % len(columns)])}]"


def _element(where: str, key: str, per_row: int) -> Callable[[int], str]:
    def locate(index: int) -> str:
        inner = f"[{index % per_row}]" if per_row > 1 else ""
        return f"{where}[{index // per_row}]{key}{inner}"

    return locate


def _listed(specs: Mapping[str, TensorSpec]) -> str:
    names = [shown(name) for name in list(specs)[:10]]
    return ", ".join(names) + (f" and {len(specs) - 10} more" if len(specs) > 10 else "")

"""The signature: what goes into a version and what comes out, by name, datatype and shape.

Standard library only, so that the parent process can check a manifest without numpy or a runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown
from registry.manifest import Json, JsonObject

DATATYPES: Final = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
)  # fmt: skip
MAX_DIMENSIONS: Final = 8
MAX_DIMENSION: Final = 2**63 - 1  # of any runtime and of numpy
MAX_TENSOR_SPECS: Final = 10_000
_SPEC_KEYS: Final = frozenset(
    {
        "name",
        "datatype",
        "shape",
        "columns",
        "labels",
        "categories",
        "missing",
        "method",
        "integers",
    }
)
_LISTED: Final = {"columns": "column", "categories": "category", "labels": "label"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output.

    ``shape``: -1 is any size; the first dimension of a batchable tensor is the rows.
    ``columns``: for a table as one matrix ``(rows, features)``, the feature names in order.
    ``labels``: for outputs, the class labels in the order of the last dimension.
    ``categories``: for inputs, the values that training knew, for documentation.
    ``missing``: for BYTES inputs, the text that stands for a missing value; None: null is refused.
    ``method``: for outputs, the native method that it equals, such as ``predict_proba``.
    ``integers``: for BYTES inputs, whether a whole number may be sent in place of its digits,
    because the library takes both for the same.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...] | None = None
    labels: tuple[str | int, ...] | None = None
    categories: tuple[str, ...] | None = None
    missing: str | None = None
    method: str | None = None
    integers: bool = False

    def to_json(self) -> JsonObject:
        """Return the JSON form; optional fields only where they are set."""
        document: JsonObject = {
            "name": self.name,
            "datatype": self.datatype,
            "shape": list(self.shape),
        }
        for key in ("columns", "labels", "categories"):
            value = getattr(self, key)
            if value is not None:
                document[key] = list(value)
        for key in ("missing", "method"):
            value = getattr(self, key)
            if value is not None:
                document[key] = value
        if self.integers:
            document["integers"] = True
        return document


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a version, in the graph's order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> JsonObject:
        """Return the JSON form that a manifest carries."""
        inputs: list[Json] = [spec.to_json() for spec in self.inputs]
        outputs: list[Json] = [spec.to_json() for spec in self.outputs]
        return {"inputs": inputs, "outputs": outputs}


def difference(one: Signature, other: Signature, names: tuple[str, str]) -> str:
    """Return the first thing in which two signatures differ, in words; empty if none.

    ``names``: what to call the two. Everything a client can see counts: names and their order,
    datatypes, shapes, columns, categories, labels, the word for missing values, the native method.
    """
    return _difference("input", one.inputs, other.inputs, names) or _difference(
        "output", one.outputs, other.outputs, names
    )


def _difference(
    kind: str, one: tuple[TensorSpec, ...], other: tuple[TensorSpec, ...], names: tuple[str, str]
) -> str:
    mine, theirs = {spec.name: spec for spec in one}, {spec.name: spec for spec in other}
    if only := _only_in_one(kind, list(mine), list(theirs), names):
        return only
    for name, spec in mine.items():
        # Columns first: a table of other columns has another shape, which says less.
        for field in sorted(fields(TensorSpec), key=lambda item: item.name not in _LISTED):
            pair = (getattr(spec, field.name), getattr(theirs[name], field.name))
            if pair[0] != pair[1]:
                return f"{kind} {shown(name)}: {_field_difference(field.name, *pair, names)}"
    if list(mine) != list(theirs):
        return _both(f"order of {kind}s", list(mine), list(theirs), names)
    return ""


def _field_difference(name: str, a: Any, b: Any, names: tuple[str, str]) -> str:
    singular = _LISTED.get(name)
    if singular and a is not None and b is not None:
        if only := _only_in_one(singular, a, b, names):
            return only
        place = next(i for i in range(len(a)) if a[i : i + 1] != b[i : i + 1])
        return _both(f"{singular} {place}", a[place], b[place], names)
    return _both(name, a, b, names)


def _only_in_one(kind: str, a: Sequence[Any], b: Sequence[Any], names: tuple[str, str]) -> str:
    for item in (*a, *b):
        if (item in a) != (item in b):
            return f"{kind} {shown(item)} is in {names[0] if item in a else names[1]} only"
    return ""


def _both(what: str, a: Any, b: Any, names: tuple[str, str]) -> str:
    return f"{what} is {_value(a)} in {names[0]} and {_value(b)} in {names[1]}"


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    return shown(list(value)) if isinstance(value, tuple | list) else shown(value)


def parse_signature(document: object) -> Signature:
    """Check a decoded JSON signature and return it, or raise InvalidInput naming the field."""
    if not isinstance(document, Mapping):
        raise InvalidInput(f"signature: expected an object, got {type(document).__name__}")
    if unknown := sorted(set(document) - {"inputs", "outputs"}):
        raise InvalidInput(f"signature: unknown field {shown(unknown[0])}")
    inputs = _specs(document.get("inputs"), "inputs")
    outputs = _specs(document.get("outputs"), "outputs")
    if not outputs:
        raise InvalidInput("signature.outputs: at least one output is needed")
    return Signature(inputs, outputs)


def _specs(value: object, where: str) -> tuple[TensorSpec, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"signature.{where}: expected a list, got {type(value).__name__}")
    if len(value) > MAX_TENSOR_SPECS:
        raise InvalidInput(
            f"signature.{where}: {len(value)} entries, at most {MAX_TENSOR_SPECS} are allowed"
        )
    specs = tuple(_spec(item, f"signature.{where}[{i}]") for i, item in enumerate(value))
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"signature.{where}: the name {shown(twice)} stands twice")
    return specs


def _spec(item: object, where: str) -> TensorSpec:
    if not isinstance(item, Mapping):
        raise InvalidInput(f"{where}: expected an object, got {type(item).__name__}")
    if unknown := sorted(set(item) - _SPEC_KEYS):
        raise InvalidInput(f"{where}: unknown field {shown(unknown[0])}")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{where}.name: {shown(name)} must be a non-empty string")
    datatype = item.get("datatype")
    if datatype not in DATATYPES:
        raise InvalidInput(
            f"{where}.datatype: {shown(datatype)} is not one of {', '.join(DATATYPES)}"
        )
    labels = item.get("labels")
    if labels is not None and not (
        isinstance(labels, list) and all(type(x) in (str, int) for x in labels)
    ):
        raise InvalidInput(f"{where}.labels: must be a list of strings or integers")
    shape = _shape(item.get("shape"), f"{where}.shape")
    columns = _strings(item.get("columns"), f"{where}.columns")
    if columns is not None:
        _check_columns(columns, shape, f"{where}.columns")
    return TensorSpec(
        name=name,
        datatype=str(datatype),
        shape=shape,
        columns=columns,
        labels=tuple(labels) if labels is not None else None,
        categories=_strings(item.get("categories"), f"{where}.categories"),
        missing=_optional_string(item.get("missing"), f"{where}.missing"),
        method=_optional_string(item.get("method"), f"{where}.method"),
        integers=_integers(item.get("integers", False), str(datatype), f"{where}.integers"),
    )


def _integers(value: object, datatype: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {shown(value)} must be true or false")
    if value and datatype != "BYTES":
        raise InvalidInput(f"{where}: true is for BYTES only, this is {datatype}")
    return value


def _shape(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(n) is int and -1 <= n <= MAX_DIMENSION for n in value
    ):
        raise InvalidInput(
            f"{where}: {shown(value)} must be a list of integers from -1 to {MAX_DIMENSION}"
        )
    if len(value) > MAX_DIMENSIONS:
        raise InvalidInput(
            f"{where}: {len(value)} dimensions, at most {MAX_DIMENSIONS} are allowed"
        )
    return tuple(value)


def _check_columns(columns: tuple[str, ...], shape: tuple[int, ...], where: str) -> None:
    if len(shape) != 2 or shape[1] not in (-1, len(columns)):
        raise InvalidInput(
            f"{where}: {len(columns)} names do not fit shape {list(shape)}: "
            f"a table is [-1, {len(columns)}]"
        )
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidInput(f"{where}: the name {shown(twice)} stands twice")


def _strings(value: object, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise InvalidInput(f"{where}: must be a list of strings")
    return tuple(value)


def _optional_string(value: object, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{where}: {shown(value)} must be a string")
    return value

"""Compares JSON with a schema of an OpenAPI document: the keywords that our documents use.

Stricter than the standard in one thing: a field that the schema does not name is an error, so that
no answer has more than its documentation. Under ``oneOf`` and ``not`` it is as the standard says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
}
_KNOWN: Final = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "oneOf",
        "not",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "enum",
        "const",
        "pattern",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "maxLength",
        "uniqueItems",
        "format",
        "description",
        "examples",
        "example",
        "$ref",
    ]
)


def problems(
    value: Any,
    schema: Mapping[str, Any],
    document: Mapping[str, Any],
    where: str = "body",
    *,
    is_strict: bool = True,
) -> Iterator[str]:
    """Yield what is wrong with ``value``; ``document`` is where references lead."""
    assert set(schema) <= _KNOWN, f"{where}: this check does not know {set(schema) - _KNOWN}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from problems(value, document["components"]["schemas"][name], document, where)
        return
    if "anyOf" in schema:
        found = [list(problems(value, one, document, where)) for one in schema["anyOf"]]
        if all(found):
            yield f"{where}: none of {len(found)} schemas: {found}"
        return
    types = schema.get("type", list(_TYPES))
    if not any(_TYPES[name](value) for name in ([types] if isinstance(types, str) else types)):
        yield f"{where}: {value!r} is no {types}"
        return
    yield from _of_branches(value, schema, document, where)
    yield from _of_value(value, schema, where)
    if isinstance(value, dict):
        yield from _of_object(value, schema, document, where, is_strict=is_strict)
    if isinstance(value, list):
        if schema.get("uniqueItems") and any(item in value[:at] for at, item in enumerate(value)):
            yield f"{where}: an item stands twice"
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), document, f"{where}[{index}]")


def _of_branches(
    value: Any, schema: Mapping[str, Any], document: Mapping[str, Any], where: str
) -> Iterator[str]:
    def fits(branch: Mapping[str, Any]) -> bool:
        return not list(problems(value, branch, document, where, is_strict=False))

    branches = schema.get("oneOf", ())
    if branches and sum(map(fits, branches)) != 1:
        yield f"{where}: not exactly one of {len(branches)} schemas"
    if "not" in schema and fits(schema["not"]):
        yield f"{where}: what it must not be"


def _of_value(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"
    if type(value) in (int, float):
        if value < schema.get("minimum", value):
            yield f"{where}: {value} is below {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{where}: {value} is above {schema['maximum']}"


def _of_object(
    value: dict[str, Any],
    schema: Mapping[str, Any],
    document: Mapping[str, Any],
    where: str,
    *,
    is_strict: bool,
) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}: {name!r} is missing"
    count = len(value)
    if not schema.get("minProperties", 0) <= count <= schema.get("maxProperties", count):
        yield f"{where}: {count} fields"
    for name in value:
        yield from problems(name, schema.get("propertyNames", {}), document, f"{where}: {name}")
    more = schema.get("additionalProperties", not (known and is_strict))
    for name, item in value.items():
        if name in known:
            yield from problems(item, known[name], document, f"{where}.{name}")
        elif more is False:
            yield f"{where}: {name!r} is not documented"
        elif isinstance(more, dict):
            yield from problems(item, more, document, f"{where}.{name}")

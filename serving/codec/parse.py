"""A JSON body to a Python value, with errors that say what to write instead."""

from __future__ import annotations

from typing import Any, Final

import orjson

from registry.errors import InvalidInput
from registry.ident import shown

# The parser's own; a test holds it to it.
MAX_JSON_DEPTH: Final = 1024
_NOT_A_NUMBER: Final = ("NaN", "nan", "Infinity", "-Infinity", "-NaN", "inf", "-inf")


def parse_object(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in ``body``, or raise InvalidInput."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"body: {problem(error)}") from error
    if type(document) is not dict:
        raise InvalidInput(f"body: expected a JSON object, got {kind_of(document)}")
    return document


def kind_of(value: object) -> str:
    """Return what a JSON value is, with its article."""
    return _KINDS.get(type(value), type(value).__name__)


def shown_json(value: object) -> str:
    """Return a JSON value as it may stand in an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return kind_of(value)
    return shown(value)


_KINDS: Final[dict[type, str]] = {
    dict: "an object", list: "a list", str: "a string", bool: "a boolean",
    int: "a number", float: "a number", type(None): "null",
}  # fmt: skip


def problem(error: orjson.JSONDecodeError) -> str:
    """Return what is wrong with a text, and what to write instead."""
    if str(error).startswith("depth limit"):
        return f"not JSON that is read here: nested deeper than {MAX_JSON_DEPTH}"
    # Only for a bad token is the position its first character, or the one after a sign.
    around = error.doc[max(0, error.pos - 1) : error.pos + 9]
    for token in _NOT_A_NUMBER:
        if token in (around[: len(token)], around[1 : len(token) + 1]):
            return f"not JSON: {token} is not a JSON number: write null for a missing value"
    return f"not JSON: {error}"

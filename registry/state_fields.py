"""Reads the fields of the persisted state; what is not as it must be raises InvalidInput."""

from __future__ import annotations

from typing import Any

from registry.errors import InvalidInput
from registry.ident import shown


def object_of(value: object, where: str) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: must be an object, got {type(value).__name__}")
    return value


def fields_of(value: object, where: str, keys: set[str]) -> dict[str, Any]:
    """Return an object that must have just these keys."""
    body = object_of(value, where)
    if set(body) != keys:
        odd = sorted(set(body) ^ keys)
        raise InvalidInput(f"{where}: field {shown(odd[0])} is unknown or missing")
    return body


def count_of(value: object, where: str) -> int:
    """Return a value that must be an integer from 0."""
    if type(value) is not int or value < 0:
        raise InvalidInput(f"{where}: {shown(value)} must be an integer from 0")
    return value


def text_of(value: object, where: str) -> str:
    """Return a value that must be a string."""
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {shown(value)} must be a string")
    return value


def flag_of(value: object, where: str) -> bool:
    """Return a value that must be true or false."""
    if type(value) is not bool:
        raise InvalidInput(f"{where}: {shown(value)} must be true or false")
    return value
